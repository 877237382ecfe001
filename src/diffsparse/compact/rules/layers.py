"""Layers with weights: convolutions, linear layers, batch norms.

A layer that is a module of its own, called once, is *free*: a select in front of it takes just the channels it reads,
an expand behind it puts fixed channels back, and fixed inputs fold into its bias. Any other layer (weights used
directly, or twice) takes the width that its operands have.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from diffsparse.compact.graph import Call, Graph, Mask, Node, Value, all_channels, as_mask, some
from diffsparse.compact.rules.base import Rule, argument, pin, read_all, unite, widen

_NO_CHANNELS, _NO_PAIRS = np.zeros(0, bool), np.zeros((0, 0), bool)


@dataclass(eq=False)
class Layer:
    """A node with weights."""

    input: Value
    """What its facts are derived from: `given`, or a stand-in of which nothing is known."""
    output: Value
    tensors: dict[str, str]
    """Role (weight, bias, running_mean, ...) to qualified name."""
    given: Value | None = None
    """The operand, where its channels do not lie as the layer has them."""
    call: Call | None = None
    """The module call that is this layer and nothing else, if it is free."""
    pairs: Mask = field(default_factory=lambda: _NO_PAIRS)
    """(outputs, inputs of a group): whether any weight between them is not zero."""
    dense: bool = False
    """Whether no weight at all is zero."""
    groups: int = 1
    transposed: bool = False
    eps: float = 0.0
    """Of a batch norm."""
    ragged: bool = False
    """Whether its groups keep different sizes."""
    folds: bool = False
    """Whether a fixed input other than zero has the same effect at every pixel."""
    twins: "list[Layer]" = field(default_factory=list)
    """Layers with the same weights, this one included."""
    pinned: bool = False
    """Whether something else, too, uses its weights."""
    rows: Mask = field(default_factory=lambda: _NO_CHANNELS)
    """Outputs that it computes after compaction."""
    columns: Mask = field(default_factory=lambda: _NO_CHANNELS)
    """Inputs that it takes after compaction."""

    @property
    def free(self) -> bool:
        """Whether a select, an expand and a bias can be put around it."""
        return self.call is not None

    @property
    def operand(self) -> Value:
        """The tensor that goes in."""
        return self.input if self.given is None else self.given

    def read_operand(self) -> None:
        """Mark what the columns need of the operand."""
        if self.given is not None:
            read_all(self.given)
        elif self.input.axis is not None:
            self.input.need |= self.columns

    def keep_operand(self) -> bool:
        """Keep of the operand what a select takes from it, or all where its channels lie otherwise."""
        if self.given is not None:
            return pin([self.given])
        return self.free and self.input.axis is not None and widen(self.input, self.columns)

    def agree(self) -> bool:
        """Give all uses of the same weights the same widths; whether anything changed."""
        inputs, outputs = [twin.operand for twin in self.twins], [twin.output for twin in self.twins]
        if self.pinned:
            return pin([*inputs, *outputs])
        changed = False
        for values in (inputs, outputs):
            if len(values) > 1:
                odd = any(v.axis is None for v in values) or any(twin.given is not None for twin in self.twins)
                changed |= pin(values) if odd else unite(values)
        return bool(changed)


def _tensors(node: Node, roles: dict[str, tuple[int, str]]) -> dict[str, str] | None:
    """Names of the parameters in each role; None if one is not a parameter itself."""
    names = {}
    for role, (position, keyword) in roles.items():
        value = argument(node, position, keyword)
        if value is None:
            continue
        if not isinstance(value, Value) or value.parameter is None:
            return None
        names[role] = value.parameter
    return names


def _layer(source: Value, axis: int, node: Node, names: dict[str, str]) -> Layer:
    """The layer of a node; an operand whose channels lie otherwise is read whole, through a stand-in."""
    if source.labels is None and source.axis in (None, axis):
        return Layer(source, node.output, names)
    return Layer(Value(source.shape, touched=True), node.output, names, given=source)


class Matrix(Rule):
    """Convolutions and linear layers: every output reads the inputs it has weights for."""

    reason = "weights that are computed, not stored"

    def __init__(self, spatial: int, transposed: bool = False) -> None:
        self.spatial = spatial
        self.transposed = transposed

    def facts(self, node: Node, graph: Graph) -> bool:
        names = _tensors(node, {"weight": (1, "weight"), "bias": (2, "bias")})
        source = argument(node, 0, "input")
        axis = len(node.output.shape) - 1 - self.spatial
        if not names or "weight" not in names or axis < 0:
            return False
        layer = _layer(source, axis, node, names)
        layer.transposed = self.transposed
        self._describe(node, layer, graph)
        node.layer = layer
        node.output.track(axis, self._fixed(layer, node.output.shape[axis]), node.result)
        return True

    def _describe(self, node: Node, layer: Layer, graph: Graph) -> None:
        weight = graph.tensors[layer.tensors["weight"]].detach()
        # mostly no weight is zero, which is found out quickest
        layer.dense = bool(weight.all())
        if layer.dense:
            pairs = all_channels(weight.shape[:2])
        else:
            pairs = as_mask(weight.flatten(2).any(2) if weight.dim() > 2 else weight)
        layer.folds = not self.transposed
        if self.spatial:
            padding = argument(node, 4, "padding", 0)
            padded = padding not in (0, "valid") and any(padding if isinstance(padding, tuple) else [padding])
            layer.folds = not padded and not self.transposed
            layer.groups = argument(node, 6, "groups", 1)
        if self.transposed:
            # (inputs, outputs of a group) to (outputs, inputs of a group)
            blocks = pairs.reshape(layer.groups, -1, pairs.shape[1]).swapaxes(1, 2)
            pairs = blocks.reshape(-1, blocks.shape[2])
        layer.pairs = pairs

    @staticmethod
    def _live_inputs(layer: Layer, folding: bool) -> Mask:
        """Inputs that matter to an output with weights for them."""
        source = layer.input
        if source.axis is None:
            return all_channels(layer.pairs.shape[1] * layer.groups)
        return ~(source.fixed if folding else source.zero)

    def _fixed(self, layer: Layer, outputs: int) -> Mask:
        live = self._live_inputs(layer, layer.folds)
        if layer.dense and layer.groups == 1:
            return np.full(outputs, not some(live))
        live = live.reshape(layer.groups, 1, -1)
        reads = layer.pairs.reshape(layer.groups, outputs // layer.groups, -1) & live
        return np.asarray(~np.logical_or.reduce(reads, axis=2).reshape(-1))

    def needs(self, node: Node) -> None:
        layer, out = node.layer, node.output
        layer.rows = out.need & ~out.fixed if layer.free else out.need.copy()
        layer.columns = self._reads(layer, layer.rows)
        if layer.groups > 1:
            regular = _regular(layer.rows, layer.columns, layer.groups)
            layer.ragged = layer.free and not layer.transposed and _ragged_pays(layer, *regular)
            if not layer.ragged:
                layer.rows, layer.columns = regular
        layer.read_operand()

    def _reads(self, layer: Layer, rows: Mask) -> Mask:
        live = self._live_inputs(layer, layer.folds and layer.free)
        if layer.dense and layer.groups == 1:
            return live if some(rows) else np.zeros_like(live)
        live = live.reshape(layer.groups, -1)
        pairs = layer.pairs.reshape(layer.groups, -1, layer.pairs.shape[1])
        read = np.logical_or.reduce(pairs & rows.reshape(layer.groups, -1, 1), axis=1) & live
        return np.asarray(read.reshape(-1))

    def couple(self, node: Node) -> bool:
        layer, out = node.layer, node.output
        source = layer.input
        if layer.free:
            # rows that only fill up a group are computed, so they are there
            changed = widen(out, layer.rows)
            return layer.keep_operand() or changed
        changed = layer.keep_operand()
        if layer.groups > 1:
            layer.rows, layer.columns = all_channels(out.channels), all_channels(len(layer.columns))
            return pin([source, out]) or changed
        changed = layer.agree() or changed
        layer.rows = out.keep
        layer.columns = source.keep if source.axis is not None else all_channels(layer.pairs.shape[1])
        return bool(changed)

    def refusal(self, node: Node) -> str:
        if node.layer.free or node.layer.groups == 1:
            return ""
        return f"{node.op}: a grouped convolution whose weights are used more than once or outside of a module"


def _regular(rows: Mask, columns: Mask, groups: int) -> tuple[Mask, Mask]:
    """The smallest grouped convolution around these rows and columns: live groups, all of one size."""
    by_row, by_column = rows.reshape(groups, -1), columns.reshape(groups, -1)
    live = by_row.any(1)
    out_rows, out_columns = np.zeros_like(by_row), np.zeros_like(by_column)
    if live.any():
        height, width = by_row[live].sum(1).max(), max(int(by_column[live].sum(1).max()), 1)
        for group in np.flatnonzero(live):
            out_rows[group] = _filled(by_row[group], height)
            out_columns[group] = _filled(by_column[group], width)
    return out_rows.reshape(-1), out_columns.reshape(-1)


# Groups of different sizes run one by one: worth it only for a few groups and a real saving.
MOST_RAGGED_GROUPS, RAGGED_GAIN = 8, 1.1


def _ragged_pays(layer: Layer, rows: Mask, columns: Mask) -> bool:
    def pairs(outputs: Mask, inputs: Mask) -> int:
        return int((outputs.reshape(layer.groups, -1).sum(1) * inputs.reshape(layer.groups, -1).sum(1)).sum())

    live = int(layer.rows.reshape(layer.groups, -1).any(1).sum())
    return 1 < live <= MOST_RAGGED_GROUPS and RAGGED_GAIN * pairs(layer.rows, layer.columns) < pairs(rows, columns)


def _filled(mask: Mask, count: int) -> Mask:
    """`mask` with further entries from the front until it has `count`."""
    filled = mask.copy()
    filled[np.flatnonzero(~mask)[: max(int(count - mask.sum()), 0)]] = True
    return filled


class BatchNorm(Rule):
    """A channel with scale zero is its shift; a fixed channel stays fixed."""

    reason = "channels that do not lie along dimension 1"
    _roles: ClassVar = {
        "running_mean": (1, "running_mean"),
        "running_var": (2, "running_var"),
        "weight": (3, "weight"),
        "bias": (4, "bias"),
    }

    def facts(self, node: Node, graph: Graph) -> bool:
        names = _tensors(node, self._roles)
        source = argument(node, 0, "input")
        if names is None:
            return False
        own_statistics = argument(node, 5, "training", False) or "running_mean" not in names
        channels = node.output.shape[1]
        layer = _layer(source, 1, node, names)
        layer.eps = argument(node, 7, "eps", 1e-5)
        tracked_input = layer.input.axis is not None and not own_statistics
        fixed = source.fixed.copy() if tracked_input else np.zeros(channels, bool)
        if "weight" in names:
            fixed |= ~as_mask(graph.tensors[names["weight"]])
        node.layer = layer
        node.output.track(1, fixed, node.result)
        return True

    def needs(self, node: Node) -> None:
        layer, out = node.layer, node.output
        layer.rows = layer.columns = out.need & ~out.fixed if layer.free else out.need.copy()
        layer.read_operand()

    def couple(self, node: Node) -> bool:
        layer, out = node.layer, node.output
        source = layer.input
        changed: bool = layer.keep_operand()
        if layer.free:
            return changed
        changed = (pin([out]) if source.axis is None else unite([source, out])) or changed
        changed = layer.agree() or changed
        layer.rows = layer.columns = out.keep
        return bool(changed)


def fold_into_bias(layer: Layer, weight: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """What the fixed inputs that are no longer there add to each output; None if nothing."""
    source = layer.input
    if source.axis is None or not layer.folds:
        return None
    gone = np.where(source.fixed & ~layer.columns, source.numbers, 0.0)
    if not gone.any():
        return None
    summed = weight.detach().double().cpu()
    summed = summed.flatten(2).sum(2) if summed.dim() > 2 else summed
    blocks = summed.numpy().reshape(layer.groups, -1, summed.shape[1])
    added = np.einsum("goi,gi->go", blocks, gone.reshape(layer.groups, -1))
    return np.asarray(added.reshape(-1))


OPERATORS: dict[str, Any] = {
    "linear": Matrix(0),
    **{f"conv{d}d": Matrix(d) for d in (1, 2, 3)},
    **{f"conv_transpose{d}d": Matrix(d, transposed=True) for d in (1, 2, 3)},
    "batch_norm": BatchNorm(),
}
