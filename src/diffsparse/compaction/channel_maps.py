"""Single channels that vary with the position and with nothing else, beside channels that depend on the input.

A depthwise convolution with zero padding makes such a channel of a constant one. What reads it gets a map instead.
"""

import numpy as np
import torch
from torch import Tensor

from diffsparse.compaction.constants import LARGEST, constants_of
from diffsparse.compaction.evaluate import HANDLERS, evaluate
from diffsparse.compaction.graph import Call, Graph, Node, Value
from diffsparse.compaction.masks import Mask, every, some
from diffsparse.compaction.patterns import Pattern
from diffsparse.compaction.rules.layer import Layer
from diffsparse.compaction.rules.pointwise import Pointwise
from diffsparse.compaction.sizes import PERMUTING

_KEEP_CHANNELS = {*PERMUTING, "pad", *(f"{kind}_pool{d}d" for kind in ("max", "avg") for d in (1, 2, 3))}


class ChannelMaps:
    """Finds these channels, notes them as `Value.mapped`, and knows what they are at every size.

    Args:
        graph: the recorded run, with the tensors of the model.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph, self._constants = graph, constants_of(graph)
        self._patterns: dict[int, Pattern] = {}
        for node in graph.nodes:
            if len(node.outputs) == 1 and node.output.axis is not None and not every(node.output.fixed):
                self._note(node)

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def of(self, value: Value) -> Pattern:
        """What the mapped and the fixed channels of `value` are; others are zero here."""
        return self._patterns[id(value)]

    def leave_to_maps(self, node: Node, layer: Layer) -> None:
        """Note in `layer` what maps can do for it; groups that are filled up need all that they hold."""
        call, out, source = layer.call, node.output, layer.input
        if call is None or layer.twins or not node.rule.is_all_of(call, node) or _is_without_maps(call):
            return
        if len(out.mapped) and (layer.groups == 1 or layer.is_depthwise):
            layer.mapped_rows = out.mapped if self._constants.anchor_of(call, self.of(out)) is not None else None
        if layer.mixes and layer.groups == 1 and len(source.mapped):
            columns = source.mapped if layer.folds else source.mapped | (source.fixed & (source.numbers != 0))
            added = self.added_by(node, columns)
            if added is not None and self._constants.anchor_of(call, added) is not None:
                layer.mapped_columns = columns

    def added_by(self, node: Node, columns: Mask) -> Pattern | None:
        """What these inputs of a layer add to its outputs; None if that is not certain."""
        layer: Layer = node.layer
        bias = layer.tensors.get("bias")

        def lookup(value: Value) -> Pattern | None:
            pattern = self._known(value, node)
            if pattern is None or (value is not layer.input and value.parameter != bias):
                return pattern
            kept = _spread(columns, pattern.data, layer.input.axis) if value is layer.input else torch.tensor(False)
            return Pattern(torch.where(kept, pattern.data, 0.0), pattern.axes)

        return self._made(node, {id(value): lookup(value) for value in node.inputs})

    def _note(self, node: Node) -> None:
        known, out = self._known_outputs(node), node.output
        if known is None or not some(known & ~out.fixed):
            return
        pattern = self._made(node, {id(value): self._known(value, node) for value in node.inputs})
        if pattern is None or not pattern.has_entries({out.dim}):
            return
        # what is not known must not become infinite on the way
        data = torch.where(_spread(known, pattern.data, out.axis), pattern.data, 0.0)
        numbers = torch.tensor(out.numbers).view(out.grid)
        data = torch.where(_spread(out.fixed, data, out.axis), numbers, data)
        self._patterns[id(out)] = Pattern(data, pattern.axes)
        out.mapped = known & ~out.fixed

    @staticmethod
    def _made(node: Node, patterns: "dict[int, Pattern | None]") -> Pattern | None:
        found = {key: pattern for key, pattern in patterns.items() if pattern is not None}
        if len(found) < len(patterns):
            return None
        try:
            made = evaluate(node, lambda value: found[id(value)])
        except (RuntimeError, TypeError, ValueError, IndexError):
            # an operator that does not take tables in float64 is computed as before
            return None
        return made[0] if len(made) == 1 and made[0].data.numel() <= LARGEST else None

    def _known(self, value: Value, node: Node) -> Pattern | None:
        """A pattern of an operand of `node`, right in its known channels and zero in others."""
        if id(value) in self._patterns:
            return self._patterns[id(value)]
        return self._constants.seen_by(value, node)

    def _known_outputs(self, node: Node) -> Mask | None:
        """The outputs that read known channels only; None if there are none, or the operator is not followed."""
        layer: Layer | None = node.layer
        if layer is not None:
            if node.op not in HANDLERS or layer.computed or layer.given is not None or layer.input.axis is None:
                return None
            if not layer.mixes:
                return self._known_channels(layer.input) if len(layer.input.mapped) else None
            return None if layer.pairs is None else _reading_only(layer, self._known_channels(layer.input))
        if isinstance(node.rule, Pointwise):
            if not any(len(value.mapped) for value in node.inputs):
                return None
            known = np.ones(node.output.channels, bool)
            for value, dim in node.details:
                known &= self._known_operand(value, dim)
            return known
        if node.op not in _KEEP_CHANNELS or len(node.inputs) != 1:
            return None
        source = node.inputs[0]
        follows = source.axis is not None and source.channels == node.output.channels
        return self._known_channels(source) if follows else None

    def _known_operand(self, value: Value, dim: int | None) -> Mask | bool:
        if dim is None or value.axis is None or value.parameter is not None:
            return value.parameter is not None
        return self._known_channels(value)

    def _known_channels(self, value: Value) -> Mask:
        if self._constants.of(value) is not None:
            return np.ones(value.channels, bool)
        return value.fixed | value.mapped if len(value.mapped) else value.fixed


def channel_maps_of(graph: Graph) -> ChannelMaps:
    """The maps of `graph`, found when first asked for: before anything is cut from the model."""
    if graph.maps is None:
        graph.maps = ChannelMaps(graph)
    return graph.maps


def _is_without_maps(call: Call) -> bool:
    """Whether a module around the call says that its layers shall have none, by an attribute `without_maps`."""
    around: Call | None = call
    while around is not None:
        if getattr(type(around.module), "without_maps", False):
            return True
        around = around.parent
    return False


def _reading_only(layer: Layer, known: Mask) -> Mask | None:
    """Outputs of a layer that read known inputs only."""
    assert layer.pairs is not None
    if not some(known):
        return None
    unknown = ~known.reshape(layer.groups, 1, -1)
    reads = layer.pairs.reshape(layer.groups, -1, layer.pairs.shape[1]) & unknown
    return np.asarray(~np.logical_or.reduce(reads, axis=2).reshape(-1))


def _spread(mask: Mask, data: Tensor, axis: int | None) -> Tensor:
    """The mask along the channels of a table."""
    assert axis is not None
    return torch.tensor(mask).view(-1, *[1] * (data.dim() - 1 - axis))
