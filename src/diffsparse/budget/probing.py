"""What compaction leaves of every layer and product while some gate entries are dead, seen from recordings."""

import warnings
from dataclasses import dataclass

import numpy as np
from torch import nn

from diffsparse.budget.entries import GateEntries
from diffsparse.budget.limits import Mask, Numbers
from diffsparse.compaction import compact
from diffsparse.compaction.analyse import Analysis
from diffsparse.compaction.attempts import has_heads
from diffsparse.compaction.duplicate import duplicate
from diffsparse.compaction.graph import Graph, Node
from diffsparse.compaction.materialise import materialise
from diffsparse.compaction.recording import recorded
from diffsparse.compaction.rules.base import Rule
from diffsparse.compaction.rules.layer import Layer
from diffsparse.errors import SparsityError, SparsityWarning
from diffsparse.example import Example

NOTHING = np.zeros(0, bool)


@dataclass(frozen=True)
class Part:
    """A layer, or a product of activations, and what it costs."""

    per_pair: Numbers
    """MACs, parameters and bytes per pair of output and input."""
    per_row: Numbers
    """The same per output."""
    groups: int


class Probe:
    """A copy of a gated model in which any entries can be dead.

    Args:
        model: the gated model; it is left as it is.
        example: what it is recorded on.
        entries: the gate entries that may die.
    """

    def __init__(self, model: nn.Module, example: Example, entries: GateEntries) -> None:
        self._model, self._example, self._entries = duplicate(model).eval(), example, entries
        self._heads: bool | None = None
        self._sizes: list[tuple[int, int]] = []

    def with_alive(self, alive: Mask) -> nn.Module:
        """The ordinary model in which these entries live."""
        self._entries.impose(self._model, alive)
        return materialise(self._model)

    def parts(self) -> list[Part]:
        """Every layer and product with its cost, while all entries live."""
        graph, nodes, _ = self._look(np.ones(self._entries.count, bool))
        self._sizes = [(len(rows), len(columns)) for rows, columns in map(_masks, nodes)]
        stored = {name for name, tensor in graph.tensors.items() if isinstance(tensor, nn.Parameter)}
        return [_product(node, graph) if node.layer is None else _layer(node, graph, stored) for node in nodes]

    def masks(self, alive: Mask) -> list[tuple[Mask, Mask]]:
        """Which outputs and inputs of each of the `parts` stay if these entries live."""
        _, nodes, gone = self._look(alive)
        if len(nodes) != len(self._sizes):
            raise SparsityError(
                f"{type(self._model).__name__} runs other layers while some channels are dead; a budget needs a model "
                "that always runs the same ones"
            )
        masks = []
        for node, sizes in zip(nodes, self._sizes, strict=True):
            found = [np.zeros(size, bool) for size in sizes] if id(node) in gone else _masks(node)
            # what is tracked only sometimes counts as alive
            rows, columns = (m if len(m) == n else np.ones(n, bool) for m, n in zip(found, sizes, strict=True))
            masks.append((rows, columns))
        return masks

    def _look(self, alive: Mask) -> tuple[Graph, list[Node], set[int]]:
        """The recording, its layers and products, and those of them that leave with their module."""
        graph, _ = recorded(self.with_alive(alive), self._example)
        if self._heads is None:
            self._heads = has_heads(graph) and self._heads_leave()
        left = {id(node) for node in Analysis(graph, heads=self._heads).nodes}
        nodes = [node for node in graph.nodes if node.layer is not None or type(node.rule).macs is not Rule.macs]
        return graph, nodes, {id(node) for node in nodes} - left

    def _heads_leave(self) -> bool:
        """Whether dead heads leave the tensors between layers, too: the code around them may insist on their number."""
        self._entries.impose(self._model, self._entries.random_patterns(1)[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SparsityWarning)
            return not compact(self._model, self._example.inputs).insists_on_heads


def _masks(node: Node) -> tuple[Mask, Mask]:
    if node.layer is None:
        out = node.output
        # what nobody reads keeps a width all the same
        return out.keep & out.need.any() if out.axes is not None else NOTHING, NOTHING
    return node.layer.rows.copy(), node.layer.columns.copy() if node.layer.mixes else NOTHING


def _layer(node: Node, graph: Graph, stored: set[str]) -> Part:
    layer: Layer = node.layer
    pair, row = np.zeros(3), np.zeros(3)
    for role in (*layer.tensors, *layer.computed):
        tensor, counts = layer.held(role, graph), role in layer.computed or layer.tensors[role] in stored
        if role == "weight" and layer.mixes:
            size = tensor[0, 0].numel()
            pairs = sum(height * width for height, width in layer.block_sizes)
            macs = node.rule.macs(node, graph)[1] / max(pairs, 1)
            pair += (macs, size * counts, size * tensor.element_size())
        elif tensor.dim():
            row += (0, counts, tensor.element_size())
    return Part(pair, row, layer.groups)


def _product(node: Node, graph: Graph) -> Part:
    """Its MACs are in proportion to the channels of its output, such as heads."""
    macs = node.rule.macs(node, graph)[0] if node.output.axes is not None else 0
    return Part(np.zeros(3), np.array([macs / max(len(node.output.keep), 1), 0, 0]), 1)
