"""Operators that work entry by entry, with broadcasting: activations, sums, products."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from diffsparse.compact.graph import Graph, Mask, Node, Value
from diffsparse.compact.rules.base import Rule, numbers_along, pin, read_all, unite


@dataclass
class Operand:
    """A tensor operand against the channel axis of the result."""

    value: Value
    dim: int | None
    """Its dimension that lies along the channels; None if it is broadcast over them."""


class Pointwise(Rule):
    """One channel of the result reads the same channel of every operand."""

    reason = "operands whose channels lie along different dimensions"

    def facts(self, node: Node, graph: Graph) -> bool:
        if not isinstance(node.result, Tensor) or node.output.labels is not None:
            return False
        axes = {v.axis - len(v.shape) for v in node.inputs if v.axis is not None}
        if len(axes) != 1 or any(v.labels is not None for v in node.inputs):
            return False
        out = node.output
        axis = axes.pop() + len(out.shape)
        if axis < 0:
            return False
        node.operands = self.operands(node, axis)
        if any(not self._aligned(operand) for operand in node.operands):
            return False
        out.track(axis, self._fixed(node, graph, out.shape[axis]), node.result)
        if takes_number(node.op, node.args, node.kwargs):
            # what the number makes of a zero is known if it is zero again
            zeros = np.logical_and.reduce(
                [v.zero for v in node.inputs if v.axis is not None and v.channels == out.channels]
            )
            out.fixed &= (out.numbers == 0) & zeros
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
        fixed, vanishing = np.ones(count, bool), None
        for position, operand in enumerate(node.operands):
            constant, numbers = self._constant(operand, graph)
            fixed &= constant
            if node.op == "mul" or (node.op == "div" and position == 0):
                zero = constant & (numbers == 0)
                vanishing = zero if vanishing is None else vanishing | zero
        return fixed if vanishing is None else np.asarray(fixed | vanishing)

    @staticmethod
    def _constant(operand: Operand, graph: Graph) -> tuple[Any, Any]:
        """Where the operand is one number, and which; for each channel or, where it is broadcast, for all."""
        value = operand.value
        if value.axis is not None:
            return value.fixed, value.numbers
        if value.number is not None:
            return True, value.number
        if value.parameter is None or operand.dim is None:
            return False, 0.0
        return numbers_along(graph.tensors[value.parameter], operand.dim)

    @staticmethod
    def _note_equal(node: Node, graph: Graph) -> None:
        """x + 0 is x."""
        if node.op not in {"add", "sub"} or len(node.args) != 2 or node.kwargs or len(node.inputs) != 2:
            return
        first, second = node.inputs
        if second.axis is not None and second.zero.all() and first.shape == node.output.shape:
            node.output.same_as = first
        elif node.op == "add" and first.axis is not None and first.zero.all() and second.shape == node.output.shape:
            node.output.same_as = second

    def needs(self, node: Node) -> None:
        for operand in node.operands:
            if operand.dim is None or operand.value.labels is not None:
                read_all(operand.value)
            elif operand.value.axis is not None:
                operand.value.need |= node.output.need

    def couple(self, node: Node) -> bool:
        if node.rigid:
            return pin([node.output, *node.inputs])
        operands = [o for o in node.operands if o.value.axis is not None]
        changed = unite([node.output, *(o.value for o in operands if o.dim is not None)])
        return pin([o.value for o in operands if o.dim is None]) or changed

    def slices(self, node: Node) -> dict[str, dict[int, Mask]]:
        """Parameters that lie along the channels, and what of them stays."""
        return {
            operand.value.parameter: {operand.dim: node.output.keep}
            for operand in node.operands
            if operand.value.parameter is not None and operand.dim is not None
        }


class PRelu(Pointwise):
    """A slope for all channels, or one for each of them, which lie along dimension 1."""

    @staticmethod
    def operands(node: Node, axis: int) -> list[Operand]:
        value, slope = node.inputs
        return [Operand(value, axis), Operand(slope, 0 if slope.shape[0] > 1 else None)]

    def facts(self, node: Node, graph: Graph) -> bool:
        return node.inputs[0].axis == 1 and super().facts(node, graph)


class Identity(Pointwise):
    """Gives its operand back: dropout in eval mode, contiguous, clone."""

    def facts(self, node: Node, graph: Graph) -> bool:
        if node.op.endswith("dropout") and node.kwargs.get("training", False) is True:
            return False
        if not super().facts(node, graph):
            return False
        node.output.same_as = node.inputs[0]
        return True


_TAKE_NUMBERS = {
    *("add", "sub", "rsub", "mul", "div", "rdiv", "rtruediv", "pow", "rpow"),
    *("clamp", "clip", "clamp_min", "clamp_max", "threshold", "where", "masked_fill", "lerp", "addcmul"),
    *("gt", "ge", "lt", "le", "eq", "ne", "maximum", "minimum"),
}


def takes_number(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a number from the user's code goes in, which may come from the size of the input or from its data."""
    return op in _TAKE_NUMBERS and any(isinstance(arg, int | float) for arg in [*args, *kwargs.values()])


POINTWISE = Pointwise()
IDENTITY = Identity()

OPERATORS: dict[str, Rule] = {
    **dict.fromkeys(
        [
            "relu",
            "relu6",
            "elu",
            "selu",
            "celu",
            "gelu",
            "silu",
            "mish",
            "hardswish",
            "hardsigmoid",
            "hardtanh",
            "leaky_relu",
            "softplus",
            "softsign",
            "tanh",
            "sigmoid",
            "log_sigmoid",
            "tanhshrink",
            "hardshrink",
            "softshrink",
            "threshold",
            "exp",
            "log",
            "abs",
            "neg",
            "sqrt",
            "square",
            "rsqrt",
            "reciprocal",
            "pow",
            "rpow",
            "clamp",
            "clip",
            "clamp_min",
            "clamp_max",
            "erf",
            "expand_as",
            "where",
            "masked_fill",
            "lerp",
            "addcmul",
            "gt",
            "ge",
            "lt",
            "le",
            "eq",
            "ne",
            "logical_and",
            "logical_or",
            "logical_not",
            "sign",
            "log1p",
            "expm1",
            "sin",
            "cos",
            "add",
            "sub",
            "rsub",
            "mul",
            "div",
            "rdiv",
            "rtruediv",
            "maximum",
            "minimum",
            "float",
            "double",
            "half",
            "bfloat16",
            "to",
            "type",
        ],
        POINTWISE,
    ),
    **dict.fromkeys(
        ["dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "contiguous", "clone", "detach"], IDENTITY
    ),
    "prelu": PRelu(),
}
