"""Operators that work entry by entry, with broadcasting: activations, sums, products."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from diffsparse.compaction.actions import TensorSlice
from diffsparse.compaction.graph import Graph, Mask, Node, Value, every, indices, single_number
from diffsparse.compaction.rules.base import Rule, numbers_along, pin, read_all, unite


@dataclass
class Operand:
    """A tensor operand against the channel axis of the result."""

    value: Value
    dim: int | None
    """Its dimension that lies along the channels; None if it is broadcast over them."""


def _common_axis(values: list[Value]) -> int | None:
    """Where the channels of all these values lie, counted from the end; None if they do not lie along one dimension."""
    common = None
    for value in values:
        if value.channel_of_entry is not None:
            return None
        if value.axis is not None:
            axis = value.axis - len(value.shape)
            if common is not None and axis != common:
                return None
            common = axis
    return common


def _is_zero(value: Value) -> bool:
    return value.axis is not None and every(value.fixed) and not value.numbers.any()


class Pointwise(Rule):
    """One channel of the result reads the same channel of every operand."""

    reason = "operands whose channels lie along different dimensions"

    def infer(self, node: Node, graph: Graph) -> bool:
        out = node.output
        from_the_end = _common_axis(node.inputs)
        if from_the_end is None or not isinstance(node.result, Tensor) or out.channel_of_entry is not None:
            return False
        axis = from_the_end + len(out.shape)
        if axis < 0:
            return False
        node.details = self.operands(node, axis)
        for operand in node.details:
            if not self._aligned(operand):
                return False
        out.track(axis, self._fixed(node, graph, out.shape[axis]), node.result)
        if takes_number(node.op, node.args, node.kwargs):
            # the number may differ next time, but a zero that stays zero is known
            zeros = np.logical_and.reduce(
                [v.zero for v in node.inputs if v.axis is not None and v.channels == out.channels]
            )
            out.fixed = out.fixed & (out.numbers == 0) & zeros
            out.known = out.known and bool(out.fixed.all())
        self._note_equal(node, graph)
        return True

    @staticmethod
    def operands(node: Node, axis: int) -> list[Operand]:
        """Every operand with the dimension that lies along the channels of the result."""
        found, shape = [], node.output.shape
        for value in node.inputs:
            dim = axis - len(shape) + len(value.shape)
            along = dim >= 0 and value.shape[dim] == shape[axis] and (shape[axis] > 1 or value.axis is not None)
            found.append(Operand(value, dim if along else None))
        return found

    @staticmethod
    def _aligned(operand: Operand) -> bool:
        value = operand.value
        return operand.dim is None or value.axis == operand.dim or value.parameter is not None

    def _fixed(self, node: Node, graph: Graph, count: int) -> Mask:
        fixed: Any = None
        vanishing: Any = False
        for position, operand in enumerate(node.details):
            constant, numbers = self._constant(operand, graph)
            fixed = constant if fixed is None else fixed & constant
            if node.op == "mul" or (node.op == "div" and position == 0):
                vanishing = vanishing | (constant & (numbers == 0))
        if vanishing is not False:
            fixed = fixed | vanishing
        return np.asarray(fixed if np.shape(fixed) == (count,) else np.full(count, fixed))

    @staticmethod
    def _constant(operand: Operand, graph: Graph) -> tuple[Any, Any]:
        """Where the operand is one number, and which: per channel or, if it is broadcast, for all."""
        value = operand.value
        if value.axis is not None:
            return value.fixed, value.numbers
        stored = graph.tensors[value.parameter] if value.parameter is not None else None
        number = value.number if stored is None else single_number(stored)
        if number is not None:
            return True, number
        if stored is None or operand.dim is None:
            return False, 0.0
        return numbers_along(stored, operand.dim)

    @staticmethod
    def _note_equal(node: Node, graph: Graph) -> None:
        """x + 0 is x."""
        if node.op not in {"add", "sub"} or len(node.args) != 2 or node.kwargs or len(node.inputs) != 2:
            return
        first, second = node.inputs
        if _is_zero(second) and first.shape == node.output.shape:
            node.output.same_as = first
        elif node.op == "add" and _is_zero(first) and second.shape == node.output.shape:
            node.output.same_as = second

    def needs(self, node: Node) -> None:
        for operand in node.details:
            if operand.dim is None or operand.value.channel_of_entry is not None:
                read_all(operand.value)
            elif operand.value.axis is not None:
                operand.value.need |= node.output.need

    def unify_widths(self, node: Node) -> bool:
        if node.rigid:
            return pin([node.output, *node.inputs])
        operands = [o for o in node.details if o.value.axis is not None]
        changed = unite([node.output, *(o.value for o in operands if o.dim is not None)])
        return pin([o.value for o in operands if o.dim is None]) or changed

    def slices(self, node: Node, graph: Graph) -> dict[str, TensorSlice]:
        if every(node.output.keep):
            return {}
        return {
            operand.value.parameter: TensorSlice(
                dims={operand.dim: indices(node.output.keep)}, shape=list(operand.value.shape)
            )
            for operand in node.details
            if operand.value.parameter is not None and operand.dim is not None
        }


class PRelu(Pointwise):
    """A slope for all channels, or one for each of them, which lie along dimension 1."""

    modules = (nn.PReLU,)

    @staticmethod
    def operands(node: Node, axis: int) -> list[Operand]:
        value, slope = node.inputs
        return [Operand(value, axis), Operand(slope, 0 if slope.shape[0] > 1 else None)]

    def infer(self, node: Node, graph: Graph) -> bool:
        return node.inputs[0].axis == 1 and super().infer(node, graph)

    def true_attributes(self, module: nn.Module) -> dict[str, int]:
        assert isinstance(module, nn.PReLU)
        return {"num_parameters": module.weight.numel()}


class Identity(Pointwise):
    """Gives its operand back: dropout in eval mode, contiguous, clone."""

    def infer(self, node: Node, graph: Graph) -> bool:
        if node.op.endswith("dropout") and node.kwargs.get("training", False) is True:
            return False
        if not super().infer(node, graph):
            return False
        node.output.same_as = node.inputs[0]
        return True


_TAKE_NUMBERS = {
    *("add", "sub", "rsub", "mul", "div", "rdiv", "rtruediv", "pow", "rpow"),
    *("clamp", "clip", "clamp_min", "clamp_max", "threshold", "where", "masked_fill", "lerp", "addcmul"),
    *("gt", "ge", "lt", "le", "eq", "ne", "maximum", "minimum"),
}


_NUMBERS = (int, float)


def takes_number(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call takes a Python number, which may come from the size or the data of the input."""
    return op in _TAKE_NUMBERS and any(isinstance(arg, _NUMBERS) for arg in [*args, *kwargs.values()])


POINTWISE = Pointwise()
IDENTITY = Identity()

_ENTRY_BY_ENTRY = [
    *("relu", "relu6", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish", "hardsigmoid", "hardtanh"),
    *("leaky_relu", "softplus", "softsign", "tanh", "sigmoid", "log_sigmoid", "tanhshrink", "hardshrink"),
    *("softshrink", "threshold", "exp", "log", "abs", "neg", "sqrt", "square", "rsqrt", "reciprocal", "pow"),
    *("rpow", "clamp", "clip", "clamp_min", "clamp_max", "erf", "expand_as", "where", "masked_fill", "lerp"),
    *("addcmul", "gt", "ge", "lt", "le", "eq", "ne", "logical_and", "logical_or", "logical_not", "sign"),
    *("log1p", "expm1", "sin", "cos", "add", "sub", "rsub", "mul", "div", "rdiv", "rtruediv", "maximum"),
    *("minimum", "float", "double", "half", "bfloat16", "to", "type"),
]

OPERATORS: dict[str, Rule] = {
    **dict.fromkeys(_ENTRY_BY_ENTRY, POINTWISE),
    **dict.fromkeys(
        ["dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "contiguous", "clone", "detach"], IDENTITY
    ),
    "prelu": PRelu(),
}
