"""Operators with weights: what is known of one such node, and what their rules share."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from diffsparse.compaction.graph import Call, Graph, Node, Value
from diffsparse.compaction.masks import NO_CHANNELS, Mask, every, indices, some, without
from diffsparse.compaction.rules.base import Rule, argument, pin, read_all, unite, widen
from diffsparse.compaction.rules.grid import merged, read
from diffsparse.compaction.tensor_slice import TensorSlice


class Layer:
    """A node with weights.

    A layer that is a module of its own is *free*: a select in front of it takes just the channels it reads, an expand
    behind it puts fixed channels back, and fixed inputs fold into its bias. If the module is called several times, the
    calls are twins: they compute what any of them needs, and a channel counts as fixed only where it is the same number
    in all of them. Any other layer (weights used directly, or by different modules) takes the width that its operands
    have.

    Args:
        input: what its facts are derived from: the operand, or a stand-in for `given`.
        output: what it makes.
        tensors: role (weight, bias, running_mean, ...) to qualified name.
        given: the operand, where its channels do not lie, or not only, as the layer has them.
    """

    # defaults are class attributes, because there are hundreds of layers
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

    computed: Mapping[str, Tensor] = MappingProxyType({})
    """Role to tensor, for tensors that were computed from parameters and buffers alone."""
    vectors: tuple[Value, ...] = ()
    """Those of the computed tensors whose channels are tracked."""

    # each analysis sets these
    call: Call | None = None
    """The module call that is this layer and nothing else, if it is free."""
    twins: "tuple[Layer, ...]" = ()
    """Layers with the same weights, this one included; empty if there is no other."""
    pinned: bool = False
    """Whether anything else uses its weights, too."""
    borrows: bool = False
    """Whether it is free although others use its weight, which stays whole: the layer picks its part."""
    mapped_rows: Mask | None = None
    """Outputs that vary with the position only, where an expand can put them."""
    mapped_columns: Mask | None = None
    """Inputs whose whole effect is a map that can be added to the outputs."""
    scale: np.ndarray[Any, np.dtype[np.float64]] | None = None
    """What its outputs are multiplied by, if that is needed for scores to be as before."""
    ragged: bool = False
    """Whether its groups keep different sizes."""
    rows: Mask = NO_CHANNELS
    """Outputs that it computes after compaction."""
    columns: Mask = NO_CHANNELS
    """Inputs that it takes after compaction."""

    def __init__(self, input: Value, output: Value, tensors: dict[str, str], given: Value | None = None) -> None:
        self.input, self.output, self.tensors, self.given = input, output, tensors, given

    @property
    def free(self) -> bool:
        """Whether a select, an expand and a bias can be put around it."""
        return self.call is not None

    @property
    def is_depthwise(self) -> bool:
        """Whether each group has one input and one output."""
        return self.groups > 1 and self.inputs == self.groups == self.output.channels

    @property
    def fixed_inputs(self) -> Mask:
        """Inputs that are one number, the same in all calls."""
        return self._same_in_calls([twin.input for twin in self.twins]) if self.twins else self.input.fixed

    @property
    def alike_inputs(self) -> tuple[Mask, np.ndarray[Any, np.dtype[np.float64]]]:
        """Inputs that are not folded and are made of common patterns, and their shares, as `Value` has them."""
        numbers, alike = self.input.numbers, np.zeros(self.input.channels, bool)
        shares = numbers[:, None]
        if not self.folds:
            alike = self.fixed_inputs & (numbers != 0)
        if self.input.carried.size and not self.twins:
            carried = self.input.carried[:, None]
            shares = np.concatenate([shares * alike[:, None], self.input.shares * carried], 1)
            alike = alike | self.input.carried
        return alike, shares

    @property
    def fixed_outputs(self) -> Mask:
        """Outputs that are one number, the same in all calls."""
        return self._same_in_calls([twin.output for twin in self.twins]) if self.twins else self.output.fixed

    @staticmethod
    def _same_in_calls(values: list[Value]) -> Mask:
        if any(value.axis is None for value in values):
            return np.zeros(max(value.channels for value in values), bool)
        return np.asarray(np.logical_and.reduce([v.fixed & (v.numbers == values[0].numbers) for v in values]))

    @property
    def names(self) -> dict[str, str]:
        """Role to qualified name, once computed tensors are stored in an ordinary layer."""
        if not self.computed or self.call is None:
            return self.tensors
        return {role: f"{self.call.name}.{role}" for role in (*self.tensors, *self.computed)}

    def has(self, role: str) -> bool:
        """Whether there is a tensor of this role."""
        return role in self.tensors or role in self.computed

    def held(self, role: str, graph: Graph) -> Tensor:
        """The tensor of this role, stored or computed."""
        return self.computed[role] if role in self.computed else graph.tensors[self.tensors[role]]

    @property
    def operand(self) -> Value:
        """The tensor that goes in."""
        return self.input if self.given is None else self.given

    @property
    def present(self) -> Mask:
        """Inputs that it is given after compaction, of which a select takes the columns."""
        return self.input.keep if self.given is None and self.input.axis is not None else np.ones_like(self.columns)

    @property
    def block_sizes(self) -> list[tuple[int, int]]:
        """Outputs and inputs of each group that stays."""
        rows, columns = self.rows.reshape(self.groups, -1).sum(1), self.columns.reshape(self.groups, -1).sum(1)
        return [(int(height), int(width)) for height, width in zip(rows, columns, strict=True) if height]

    def read_operand(self) -> None:
        """Add to `need` of the operand what the columns read, and to that of vectors what the rows read."""
        for vector in self.vectors:
            vector.need |= True if self.mixes else self.rows
        if self.given is not None and self.input.axis is not None:
            read(self.given, self.columns.reshape(self.input.grid))
        elif self.given is not None:
            read_all(self.given)
        elif self.input.axis is not None:
            self.input.need |= self.columns

    def keep_something(self) -> None:
        """Compute the first output, or those of the first group, if no output is needed."""
        if some(self.rows):
            return
        self.rows, self.columns = (np.zeros_like(mask) for mask in (self.rows, self.columns))
        for mask in (self.rows, self.columns):
            mask[: len(mask) // self.groups if self.groups > 1 else 1] = True
        self.ragged = False
        # what is not fixed has weights of zero here, so it need not be right
        if self.given is None and self.input.axis is not None:
            self.input.need |= self.columns & self.input.fixed

    def keep_operand(self) -> bool:
        """Keep the channels of the operand that a select takes, or all if they lie along other dimensions."""
        if self.given is not None:
            return pin([self.given])
        return self.free and self.input.axis is not None and widen(self.input, self.columns)

    def may_share(self, twin: "Layer") -> bool:
        """Whether both are calls of one module around which the same select and expand can be put."""
        if self.call is None or twin.call is None or self.call.module is not twin.call.module:
            return False
        if self.computed or self.pinned or twin.pinned or self.output.dim != twin.output.dim:
            return False
        return self.groups == 1 or self.is_depthwise

    def compute_for_all_calls(self) -> None:
        """Compute what any of the calls needs."""
        self.rows = np.logical_or.reduce([twin.rows for twin in self.twins])
        self.columns = np.logical_or.reduce([twin.columns for twin in self.twins])

    def computed_rows(self) -> Mask:
        """Of the outputs that are needed, those that an expand cannot put there."""
        needed = self.output.need & ~self.fixed_outputs
        rows = without(needed, self.mapped_rows)
        if self.mapped_rows is not None and not some(rows):
            # something has to be computed for an expand to stand behind it
            self.mapped_rows = None
            return needed
        return rows

    def keep_computed(self) -> bool:
        """Keep what is computed, in all calls alike."""
        changed = widen(self.output, self.rows)
        return (bool(self.twins) and self.agree()) or changed

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
        return changed


class LayerRule(Rule):
    """The rule of a kind of layer: its operators, its modules, the roles of its tensors and how they are cut."""

    roles: ClassVar[tuple[str, ...]]
    """Keywords of its tensors, in the order in which the operator takes them after its operand."""

    def layer_of(self, node: Node, axis: int) -> Layer | None:
        """The layer of a node; None if one of its tensors depends on the input.

        An operand whose channels do not lie along just `axis` is seen through a stand-in.
        """
        names, computed = {}, {}
        source, tensors = self.operand_and_tensors(node)
        for role, value in tensors.items():
            if value is None:
                continue
            if not isinstance(value, Value):
                return None
            if value.parameter is not None:
                names[role] = value.parameter
            elif (tensor := value.contents()) is not None:
                # a copy, because what was computed may be written to
                computed[role] = tensor.detach().clone()
            else:
                return None
        if not isinstance(source, Value):
            return None
        if source.axes is None or source.axis == axis:
            layer = Layer(source, node.output, names)
        else:
            layer = Layer(merged(source, axis), node.output, names, given=source)
        if computed:
            layer.computed = computed
            values = [argument(node, position, role) for position, role in enumerate(self.roles, 1)]
            layer.vectors = tuple(v for v in values if v is not None and v.parameter is None and v.axes is not None)
        return layer

    def operand_and_tensors(self, node: Node) -> tuple[Value, dict[str, Any]]:
        """What the layer works on, and its tensors by role."""
        tensors = {role: argument(node, position, role) for position, role in enumerate(self.roles, 1)}
        return argument(node, 0, "input"), tensors

    def is_all_of(self, call: Call, node: Node) -> bool:
        """Whether the layer takes what the call was given and makes what it returned."""
        return call.input is node.layer.operand and call.output is node.output

    def window(self, module: Any) -> list[list[int]] | None:
        """How the module changes each spatial size, as `adaptors.Constant` has it; None if it does not."""
        return None

    def slices(self, node: Node, graph: Graph) -> dict[str, TensorSlice]:
        layer: Layer = node.layer
        every_row, every_column = every(layer.rows), every(layer.columns)
        if (every_row and every_column) or (layer.free and not some(layer.rows)):
            return {}
        made = {}
        rows = {} if every_row else {0: indices(layer.rows)}
        for role, name in layer.names.items():
            if role == "weight" and layer.borrows:
                continue
            shape, cut = list(layer.held(role, graph).shape), rows
            if role == "weight" and layer.groups > 1:
                made[name] = grouped_slice(layer, shape)
                continue
            if role == "weight" and layer.mixes:
                # dimension 0 first, be it rows or columns
                cut = {**rows, **({} if every_column else {1: indices(layer.columns)})}
                if layer.transposed:
                    cut = {1 - dim: kept for dim, kept in reversed(cut.items())}
            if cut and shape:
                made[name] = TensorSlice(dims=cut, shape=shape)
        return made


def grouped_slice(layer: Layer, shape: list[int]) -> TensorSlice:
    """What stays of the weight of a grouped convolution."""
    first, second = (layer.columns, layer.rows) if layer.transposed else (layer.rows, layer.columns)
    live = layer.rows.reshape(layer.groups, -1).any(1)
    return TensorSlice(
        dims={0: indices(first)},
        columns=[indices(block) for block in second.reshape(layer.groups, -1)[live]],
        heights=[height for height, _ in layer.block_sizes] if layer.ragged else None,
        shape=shape,
    )
