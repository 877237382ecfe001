"""A model recorded on an example, as far as what the recording relies on is true at other sizes."""

from collections.abc import Collection
from functools import cached_property
from typing import Any

from torch import nn

from diffsparse.compaction.capture import capture
from diffsparse.compaction.doubt import Doubts
from diffsparse.compaction.graph import Graph
from diffsparse.compaction.trial_inputs import at_other_sizes, other_inputs, with_other_masks
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
        others = recorder.at_other_sizes if several else [g for g in (recorder.elsewhere,) if g is not None]
        untrusted = untrusted_places(graph, others)
        if untrusted:
            recorder = _Recorder(model, (example.args, example.kwargs), untrusted)
            graph, output = recorder.at_example()
    if _may_depend_on_sizes(graph) and (others := recorder.at_other_sizes):
        doubts = Doubts(graph, others)
        again, output = recorder.at_example(doubts)
        graph = again if doubts.raised else graph
        graph.sizes_tried = True
    if graph.reads_of_data(of_masks=True) and (other := recorder.with_other_masks()) is not None:
        doubts = Doubts(graph, [other])
        again, output = recorder.at_example(doubts)
        graph = again if doubts.raised else graph
        graph.masks_tried = True
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
    def elsewhere(self) -> Graph | None:
        """The graph for the most telling input that the model takes; None if it takes no other."""
        tried = (self._if_taken(other) for other in other_inputs(self._inputs))
        return next((graph for graph in tried if graph is not None), None)

    @cached_property
    def at_other_sizes(self) -> list[Graph]:
        """The graphs for inputs of several sizes, as far as the model takes them."""
        found = [] if self.elsewhere is None else [self.elsewhere]
        return found + [graph for other in at_other_sizes(self._inputs) if (graph := self._if_taken(other)) is not None]

    def with_other_masks(self) -> Graph | None:
        """The graph for the example with other masks; None if the model does not take them."""
        return self._if_taken(with_other_masks(self._inputs))

    def _if_taken(self, inputs: Any) -> Graph | None:
        try:
            return self._captured(inputs)[0]
        except Exception:
            # whatever the user's model raises, it does not take this input
            return None

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
