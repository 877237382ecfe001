"""Which tensors of a network can be multiplied together without changing what it computes."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from diffsparse.budget.shrink import has_hooks_of_a_user
from diffsparse.compaction.capture import capture
from diffsparse.compaction.duplicate import duplicate
from diffsparse.compaction.graph import Graph, Node, Value
from diffsparse.compaction.rules.base import argument
from diffsparse.compaction.verify import copied, same_draws
from diffsparse.example import Example
from diffsparse.undisturbed import restoring

LAYERS = {"linear", *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))}
_IN_PROPORTION = {
    *("relu", "leaky_relu", "dropout", "dropout1d", "dropout2d", "dropout3d", "interpolate"),
    *(f"{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max") for n in (1, 2, 3)),
    *("mean", "sum", "flatten", "view", "reshape", "permute", "transpose", "contiguous", "squeeze", "unsqueeze"),
    *("index_select", "getitem", "chunk", "split", "unbind", "channel_shuffle", "pixel_shuffle", "pixel_unshuffle"),
}
"""Operators of one tensor that give twice as much for twice as much."""

Powers: TypeAlias = dict[str, int]
"""By name of a parameter or buffer, which power of a factor it is multiplied by."""


class Readers:
    """Who reads the values of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._readers: dict[int, list[Node]] = {}
        for node in graph.nodes:
            for value in node.inputs:
                self._readers.setdefault(id(value), []).append(node)
        hooked = [call for call in graph.calls if has_hooks_of_a_user(call.module)]
        self._seen = {id(value) for value in graph.results} | {
            id(v) for call in hooked for v in (call.input, call.output)
        }
        self._reads = Counter(id(value) for node in graph.nodes for value in node.inputs)
        self.names = {value.parameter for node in graph.nodes for value in node.inputs if value.parameter}
        """Parameters and buffers that are read."""

    def of(self, value: Value) -> list[Node] | None:
        """The nodes that read it; None if there are none, or if somebody outside of the graph does."""
        readers = self._readers.get(id(value))
        return None if id(value) in self._seen else readers

    def weights(self, value: Value) -> list[str] | None:
        """Weights that everything made of `value` is in proportion to; None if it is used in another way, too."""
        found: list[str] = []
        if (readers := self.of(value)) is None:
            return None
        for node in readers:
            further: Iterable[list[str] | None]
            if node.op in LAYERS and node.args[:1] == (value,):
                further = [self.own([argument(node, 1, "weight")])]
            elif node.op in _IN_PROPORTION and len(node.inputs) == 1 and node.outputs:
                further = map(self.weights, node.outputs)
            else:
                return None
            for names in further:
                if names is None:
                    return None
                found += names
        return found

    def own(self, values: Iterable[Any]) -> list[str] | None:
        """Names of these, if they are parameters or buffers and are read once."""
        values = list(values)
        alone = all(isinstance(value, Value) and self._reads[id(value)] == 1 and value.parameter for value in values)
        return [value.parameter for value in values] if alone else None


Find: TypeAlias = Callable[[Node, Readers], Powers | None]
"""What can be multiplied together with a tensor of this node; None if that would change something else."""


def coupled(model: nn.Module, example: Example, op: Callable[[Node], bool], find: Find) -> list[Powers]:
    """What `find` gives for nodes that are `op`, where it holds in evaluation and in training alike."""
    with restoring(model, hooks=True), same_draws():
        evaluated, _ = _found(duplicate(model).eval(), example, op, find)
        try:
            trained, read = _found(duplicate(model).train(), example, op, find)
        except Exception:  # a user's code may raise anything, and so does batch norm for a single value
            return []
    # training may leave out a node with all that belongs to it, but not a part of that, and nothing else may be there
    both = [(mine, trained.get(name, {})) for name, mine in evaluated.items()]
    return [mine for mine, other in both if mine and other is not None and other.keys() == read & mine.keys()]


def _found(
    model: nn.Module, example: Example, op: Callable[[Node], bool], find: Find
) -> tuple[dict[str, Powers | None], set[str]]:
    graph, _ = capture(model, *copied((example.args, example.kwargs)))
    readers, found = Readers(graph), dict[str, Powers | None]()
    for node in graph.nodes:
        if node.call is not None and op(node):
            # whoever made strangers may read anything; a module that is called twice is no simple case
            alone = not graph.strangers and node.call.name not in found
            found[node.call.name] = find(node, readers) if alone else None
    return found, readers.names


@torch.no_grad()
def multiply(model: nn.Module, factors: Mapping[str, float]) -> None:
    """Multiply parameters and buffers, by name."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers()) if factors else {}
    for name, factor in factors.items():
        tensors[name].mul_(factor)
