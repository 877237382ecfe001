"""What compaction leaves of every layer and product while some gate entries are dead, seen from recordings."""

import warnings
from dataclasses import dataclass
from math import prod

import numpy as np
from torch import nn

from diffsparse.budget.entries import GateEntries
from diffsparse.budget.limits import Mask, Numbers
from diffsparse.compaction import Compacted, compact
from diffsparse.compaction.analyse import Analysis
from diffsparse.compaction.attempts import has_heads
from diffsparse.compaction.duplicate import duplicate
from diffsparse.compaction.graph import Graph, Node
from diffsparse.compaction.materialise import materialise
from diffsparse.compaction.recording import recorded
from diffsparse.compaction.rules.base import Rule, argument
from diffsparse.compaction.rules.layer import Layer
from diffsparse.errors import SparsityError, SparsityWarning
from diffsparse.example import Example
from diffsparse.measuring.layer_shape import LayerShape, shape_of

NOTHING = np.zeros(0, bool)


@dataclass(frozen=True)
class Part:
    """A layer, or a product of activations, and what it costs."""

    per_pair: Numbers
    """MACs, parameters and bytes per pair of output and input."""
    per_row: Numbers
    """The same per output."""
    groups: int
    shape: LayerShape | None = None
    """What decides about its time; None for what tables of latencies do not have."""
    volume: int = 0
    """Numbers that it gives out per output."""


class Probe:
    """A copy of a gated model in which any entries can be dead.

    Args:
        model: the gated model; it is left as it is.
        example: what it is recorded on.
        entries: the gate entries that may die.
    """

    def __init__(self, model: nn.Module, example: Example, entries: GateEntries) -> None:
        self._model, self.example, self._entries = duplicate(model).eval(), example, entries
        self._heads: bool | None = None
        self._sizes: list[tuple[int, int]] = []

    def with_alive(self, alive: Mask) -> nn.Module:
        """The ordinary model in which these entries live."""
        self._entries.impose(self._model, alive)
        return materialise(self._model)

    def compact_with(self, alive: Mask) -> nn.Module:
        """The compact network in which these entries live."""
        self._entries.impose(self._model, alive)
        return quietly_compacted(self._model, self.example).model

    def keeps_output(self, alive: Mask) -> bool:
        """Whether the output depends on the input while these entries live."""
        return not recorded(self.with_alive(alive), self.example)[0].constant

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
        graph, _ = recorded(self.with_alive(alive), self.example)
        if self._heads is None:
            self._heads = has_heads(graph) and self._heads_leave()
        left = {id(node) for node in Analysis(graph, heads=self._heads).nodes}
        nodes = [node for node in graph.nodes if node.layer is not None or type(node.rule).macs is not Rule.macs]
        return graph, nodes, {id(node) for node in nodes} - left

    def _heads_leave(self) -> bool:
        """Whether dead heads leave the tensors between layers, too: the code around them may insist on their number."""
        self._entries.impose(self._model, self._entries.random_patterns(1)[0])
        return not quietly_compacted(self._model, self.example).insists_on_heads


def quietly_compacted(model: nn.Module, example: Example) -> Compacted[nn.Module]:
    """What `compact` gives, without warnings: somebody else decided which entries are dead."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SparsityWarning)
        return compact(model, example.inputs)


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
    volume = prod(node.output.shape) // max(len(layer.rows), 1)
    return Part(pair, row, layer.groups, _shape(node, layer, graph), volume)


def _shape(node: Node, layer: Layer, graph: Graph) -> LayerShape | None:
    if layer.given is not None or not (held := [*layer.tensors, *layer.computed]):
        return None
    transposed = "transpose" in node.op
    names = ["stride", "padding", *(["output_padding", "groups", "dilation"] if transposed else ["dilation", "groups"])]
    given = {name: argument(node, place, name) for place, name in enumerate(names, 3)}
    settings = {name: value for name, value in given.items() if value is not None}
    weight = tuple(layer.held("weight", graph).shape) if layer.has("weight") else None
    dtype = layer.held(held[0], graph).dtype
    return shape_of(node.op, tuple(layer.operand.shape), weight, dtype, **(settings if layer.mixes else {}))


def _product(node: Node, graph: Graph) -> Part:
    """Its MACs are in proportion to the channels of its output, such as heads."""
    macs = node.rule.macs(node, graph)[0] if node.output.axes is not None else 0
    return Part(np.zeros(3), np.array([macs / max(len(node.output.keep), 1), 0, 0]), 1)
