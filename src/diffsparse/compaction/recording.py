"""A model recorded on an example, as far as what the recording relies on is true at other sizes."""

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any

from torch import nn

from diffsparse.compaction.capture import capture
from diffsparse.compaction.doubt import Doubts
from diffsparse.compaction.graph import Graph
from diffsparse.compaction.trial_inputs import at_other_sizes, other_inputs, with_one_sample, with_other_masks
from diffsparse.compaction.trust import assumes_something, may_come_from_sizes, untrusted_places
from diffsparse.compaction.verify import copied, same_draws
from diffsparse.example import Example
from diffsparse.undisturbed import State


def recorded(model: nn.Module, example: Example) -> tuple[Graph, Any]:
    """The graph and the output of `model`, which must be in eval mode, on copies of the example."""
    recorder = _Recorder(model, (example.args, example.kwargs))
    try:
        graph, output = recorder.at_example()
    except Exception:
        # if the model itself does not run, say so with the shapes
        example.run(model)
        raise
    if assumes_something(graph):
        several = may_come_from_sizes(graph)
        others = recorder.at_other_sizes + recorder.with_one_sample if several else recorder.elsewhere
        untrusted = untrusted_places(graph, others)
        if untrusted:
            recorder = _Recorder(model, (example.args, example.kwargs), untrusted)
            graph, output = recorder.at_example()
    sizes = recorder.at_other_sizes if _may_depend_on_sizes(graph) else []
    masks = recorder.with_other_masks() if graph.reads_of_data(of_masks=True) else []
    if sizes or masks:
        # together, because each recording has the doubts of one
        doubts = Doubts(graph, sizes + masks, recorder.with_one_sample if sizes else ())
        again, output = recorder.at_example(doubts)
        graph = again if doubts.raised else graph
        graph.sizes_tried, graph.masks_tried = bool(sizes), bool(masks)
    return graph, output


class _Recorder:
    """Records one model, which is left as it was, at the size of its example and at another one.

    Args:
        model: in eval mode.
        inputs: positional and keyword arguments of the example.
        untrusted: places of nodes whose numbers may be others at another size.
    """

    def __init__(self, model: nn.Module, inputs: Any, untrusted: Collection[int] = ()) -> None:
        self._model, self._inputs, self._untrusted = model, inputs, untrusted
        self._state = State(model, own_code=True)

    def at_example(self, doubts: Doubts | None = None) -> tuple[Graph, Any]:
        """The graph and the output."""
        return self._captured(self._inputs, doubts)

    @cached_property
    def elsewhere(self) -> list[Graph]:
        """The graph for the most telling input that the model takes; none if it takes no other."""
        return list(islice(self._of_those_taken(other_inputs(self._inputs)), 1))

    @cached_property
    def at_other_sizes(self) -> list[Graph]:
        """The same, and the graphs for inputs of several sizes, as far as the model takes them."""
        return self.elsewhere + list(self._of_those_taken(at_other_sizes(self._inputs)))

    @cached_property
    def with_one_sample(self) -> list[Graph]:
        """The graph for one sample, if the model takes it."""
        return list(self._of_those_taken([with_one_sample(self._inputs)]))

    def with_other_masks(self) -> list[Graph]:
        """The graph for the example with other masks, if the model takes them."""
        return list(self._of_those_taken([with_other_masks(self._inputs)]))

    def _of_those_taken(self, several: Iterable[Any]) -> Iterator[Graph]:
        for inputs in several:
            try:
                yield self._captured(inputs)[0]
            except Exception:
                # whatever the user's model raises, it does not take this input
                continue

    def _captured(self, inputs: Any, doubts: Doubts | None = None) -> tuple[Graph, Any]:
        try:
            with same_draws():
                return capture(self._model, *copied(inputs), untrusted=self._untrusted, doubts=doubts)
        finally:
            # a model may adjust itself to what it is given
            self._state.restore()


def _may_depend_on_sizes(graph: Graph) -> bool:
    """Whether code that asks for sizes sees constants other than zero, which it may pad, say."""
    after = [node for node in graph.nodes if node.after_sizes]
    seen = {id(v): v for node in after for v in (*node.inputs, *node.outputs) if v.depends_on_input}
    return any(bool((value.fixed & (value.numbers != 0)).any()) for value in seen.values())
