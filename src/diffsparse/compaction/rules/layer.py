"""Operators with weights: what is known of one such node, and what their rules have in common."""

from typing import ClassVar

import numpy as np
from torch import nn

from diffsparse.compaction.graph import Call, Graph, Mask, Node, Value, every, indices, some
from diffsparse.compaction.rules.base import Rule, argument, pin, read_all, unite, widen
from diffsparse.compaction.rules.grouped import grouped_slice
from diffsparse.compaction.tensor_slice import TensorSlice

_NO_CHANNELS = np.zeros(0, bool)


class Layer:
    """A node with weights.

    A layer that is a module of its own, called once, is *free*: a select in front of it takes just the channels it
    reads, an expand behind it puts fixed channels back, and fixed inputs fold into its bias. Any other layer (weights
    used directly, or twice) takes the width that its operands have.

    Args:
        input: what its facts are derived from: `given`, or a stand-in of which nothing is known.
        output: what it makes.
        tensors: role (weight, bias, running_mean, ...) to qualified name.
        given: the operand, where its channels do not lie as the layer has them.
    """

    # what a layer starts with lies in the class: there are hundreds of them
    mixes: bool = False
    """Whether an output reads several inputs: a convolution or a linear layer, no batch norm."""
    inputs: int = 0
    """How many inputs there are, if it mixes them."""
    pairs: Mask | None = None
    """(outputs, inputs of a group): whether any weight between them is not zero; None if that is so everywhere."""
    groups: int = 1
    transposed: bool = False
    eps: float = 0.0
    """Of a batch norm."""
    folds: bool = False
    """Whether a fixed input other than zero has the same effect at every pixel."""

    # what an analysis decides, each one anew
    call: Call | None = None
    """The module call that is this layer and nothing else, if it is free."""
    free: bool = False
    """Whether a select, an expand and a bias can be put around it."""
    twins: "tuple[Layer, ...]" = ()
    """Layers with the same weights, this one included; empty if there is no other."""
    pinned: bool = False
    """Whether something else, too, uses its weights."""
    ragged: bool = False
    """Whether its groups keep different sizes."""
    rows: Mask = _NO_CHANNELS
    """Outputs that it computes after compaction."""
    columns: Mask = _NO_CHANNELS
    """Inputs that it takes after compaction."""

    def __init__(self, input: Value, output: Value, tensors: dict[str, str], given: Value | None = None) -> None:
        self.input = input
        self.output = output
        self.tensors = tensors
        self.given = given

    @property
    def operand(self) -> Value:
        """The tensor that goes in."""
        return self.input if self.given is None else self.given

    @property
    def block_sizes(self) -> list[tuple[int, int]]:
        """Outputs and inputs of each group that stays."""
        rows, columns = self.rows.reshape(self.groups, -1).sum(1), self.columns.reshape(self.groups, -1).sum(1)
        return [(int(height), int(width)) for height, width in zip(rows, columns, strict=True) if height]

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
        twins = self.twins or (self,)
        inputs, outputs = [twin.operand for twin in twins], [twin.output for twin in twins]
        if self.pinned:
            return pin([*inputs, *outputs])
        changed = False
        for values in (inputs, outputs):
            if len(values) > 1:
                odd = any(v.axis is None for v in values) or any(twin.given is not None for twin in twins)
                changed |= pin(values) if odd else unite(values)
        return bool(changed)


class LayerRule(Rule):
    """The rule of a kind of layer: its operators, its modules, the roles of its tensors and how they are cut."""

    roles: ClassVar[dict[str, tuple[int, str]]]
    """Where the operator takes each of its tensors: position and keyword."""

    def layer_of(self, node: Node, axis: int) -> Layer | None:
        """The layer of a node; None if one of its tensors is not a parameter itself.

        An operand whose channels do not lie along `axis` is read whole, through a stand-in.
        """
        names = {}
        for role, (position, keyword) in self.roles.items():
            value = node.args[position] if position < len(node.args) else node.kwargs.get(keyword)
            if value is None:
                continue
            if not isinstance(value, Value) or value.parameter is None:
                return None
            names[role] = value.parameter
        source: Value = argument(node, 0, "input")
        if source.channel_of_entry is None and (source.axis is None or source.axis == axis):
            return Layer(source, node.output, names)
        return Layer(Value(source.shape, depends_on_input=True), node.output, names, given=source)

    def window(self, module: nn.Module) -> list[list[int]] | None:
        """How the module changes each spatial size, as `adaptors.Constant` has it; None if it does not."""
        return None

    def slices(self, node: Node, graph: Graph) -> dict[str, TensorSlice]:
        layer: Layer = node.layer
        every_row, every_column = every(layer.rows), every(layer.columns)
        if (every_row and every_column) or (layer.free and not some(layer.rows)):
            return {}
        made = {}
        rows = {} if every_row else {0: indices(layer.rows)}
        for role, name in layer.tensors.items():
            shape, cut = list(graph.tensors[name].shape), rows
            if role == "weight" and layer.groups > 1:
                made[name] = grouped_slice(layer, shape)
                continue
            if role == "weight" and layer.mixes:
                # dimension 0 first, whichever of the two it is
                cut = {**rows, **({} if every_column else {1: indices(layer.columns)})}
                if layer.transposed:
                    cut = {1 - dim: kept for dim, kept in reversed(cut.items())}
            if cut and shape:
                made[name] = TensorSlice(dims=cut, shape=shape)
        return made
