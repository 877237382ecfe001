"""Operators that work entry by entry, with broadcasting: activations, sums, products."""

from typing import Any, ClassVar, TypeAlias

import numpy as np
from torch import Tensor, nn

from diffsparse.compaction.graph import Graph, Node, Value
from diffsparse.compaction.masks import Mask, every, indices, single_number
from diffsparse.compaction.rules.base import Rule, numbers_along, pin, read_all, takes_number, unite
from diffsparse.compaction.rules.broadcast import Broadcast, trust_only_zeros
from diffsparse.compaction.rules.movement import GivenBack, draws
from diffsparse.compaction.rules.tracks import Tracks
from diffsparse.compaction.rules.vectors import track_stored
from diffsparse.compaction.tensor_slice import TensorSlice

Operand: TypeAlias = tuple[Value, int | None]
"""A tensor, and its dimension along the channels of the result; None if it is broadcast over them."""


class Pointwise(Rule):
    """One channel of the result reads the same channel of every operand."""

    reason = "operands that no rule follows"
    otherwise: ClassVar[Rule | None] = Broadcast()
    follows_vectors = True

    def infer(self, node: Node, graph: Graph) -> bool:
        out = node.output
        axes = self._dims(node, graph)
        several = any(value.axes is not None and len(value.axes) > 1 for value in node.inputs)
        axis = max(axes, default=0) + len(out.shape)
        if len(axes) != 1 or several or axis < 0 or not isinstance(node.result, Tensor):
            return False
        node.details = self.operands(node, axis)
        track_stored([value for value, dim in node.details if dim is not None], graph)
        if any(dim not in (None, value.axis) and value.parameter is None for value, dim in node.details):
            return False
        trusted = out.known or not takes_number(node.op, node.args, node.kwargs)
        out.track(axis, self._fixed(node, graph, out.shape[axis]), node.result)
        if not trusted:
            zeros = [value.zero for value, dim in node.details if dim is not None and value.axis is not None]
            trust_only_zeros(out, np.logical_and.reduce(zeros))
        self._note_equal(node)
        return True

    @staticmethod
    def _dims(node: Node, graph: Graph) -> set[int]:
        """Where channels lie, counted from the end: those of what depends on the input, or else of stored vectors."""
        moving = {value.dim for value in node.inputs if value.axis is not None and value.depends_on_input}
        if not moving and node.op == "mul":
            # nothing is known of the other factor, but zeros here are zeros of the product
            track_stored([v for v in node.inputs if v.parameter and not graph.tensors[v.parameter].all()], graph)
        return moving or {value.dim for value in node.inputs if value.axis is not None}

    @staticmethod
    def operands(node: Node, axis: int) -> list[Operand]:
        """Every operand with the dimension that lies along the channels of the result."""
        found: list[Operand] = []
        shape = node.output.shape
        for value in node.inputs:
            dim = axis - len(shape) + len(value.shape)
            along = dim >= 0 and value.shape[dim] == shape[axis] and (shape[axis] > 1 or value.axis is not None)
            found.append((value, dim if along else None))
        return found

    def _fixed(self, node: Node, graph: Graph, count: int) -> Mask:
        fixed: Any = True
        vanishing: Any = False
        # the second operand of `expand_as` is there for its shape only
        for position, (value, dim) in enumerate(node.details[:1] if node.op == "expand_as" else node.details):
            constant, numbers = self._constant(value, dim, graph)
            fixed = fixed & constant
            if node.op == "mul" or (node.op == "div" and position == 0):
                vanishing = vanishing | (constant & (numbers == 0))
        fixed = fixed | vanishing
        return np.asarray(fixed if np.shape(fixed) == (count,) else np.full(count, fixed))

    @staticmethod
    def _constant(value: Value, dim: int | None, graph: Graph) -> tuple[Any, Any]:
        """Where the operand is one number, and which: per channel or, if it is broadcast, for all."""
        if value.axis is not None:
            return (False, 0.0) if dim is None and value.channels > 1 else (value.fixed, value.numbers)
        if value.axes is not None and value.number is None:
            return bool(value.fixed[0]), value.numbers[0]
        stored = graph.tensors[value.parameter] if value.parameter is not None else None
        number = value.number if stored is None else single_number(stored)
        if number is not None:
            return True, number
        return (False, 0.0) if stored is None or dim is None else numbers_along(stored, dim)

    @staticmethod
    def _note_equal(node: Node) -> None:
        """x + 0 is x."""
        if node.op not in {"add", "sub"} or len(node.args) != 2 or node.kwargs or len(node.inputs) != 2:
            return
        first, second = node.inputs
        if _is_zero(second) and first.shape == node.output.shape:
            node.output.same_as = first
        elif node.op == "add" and _is_zero(first) and second.shape == node.output.shape:
            node.output.same_as = second

    def needs(self, node: Node) -> None:
        for value, dim in node.details:
            if dim is None:
                read_all(value)
            elif value.axis is not None:
                value.need |= node.output.need & self._heard(node, value) if node.op == "mul" else node.output.need

    @staticmethod
    def _heard(node: Node, value: Value) -> Mask | bool:
        """Channels at which no other factor is zero, or this one is zero itself."""
        others = [v.zero for v, dim in node.details if v is not value and dim is not None and v.axis is not None]
        return np.asarray(value.zero | ~np.logical_or.reduce(others)) if others else True

    def unify_widths(self, node: Node) -> bool:
        if node.rigid:
            return pin([node.output, *node.inputs])
        changed = unite([node.output, *(v for v, dim in node.details if dim is not None and v.axis is not None)])
        return pin([v for v, dim in node.details if dim is None]) or changed

    def tie(self, node: Node, tracks: Tracks) -> None:
        for value, dim in node.details:
            if dim is not None and value.axis is not None:
                tracks.tie(node.output, value)
            else:
                tracks.pin([value])

    def slices(self, node: Node, graph: Graph) -> dict[str, TensorSlice]:
        if every(node.output.keep):
            return {}
        kept = indices(node.output.keep)
        stored = [(v, dim) for v, dim in node.details if v.parameter and v.axes is None and dim is not None]
        return {value.parameter: TensorSlice(dims={dim: kept}, shape=list(value.shape)) for value, dim in stored}


def _is_zero(value: Value) -> bool:
    return value.axis is not None and every(value.fixed) and not value.numbers.any()


class PRelu(Pointwise):
    """One slope for all channels, or one per channel; channels lie along dimension 1."""

    otherwise = None
    modules = (nn.PReLU,)

    @staticmethod
    def operands(node: Node, axis: int) -> list[Operand]:
        value, slope = node.inputs
        return [(value, axis), (slope, 0 if slope.shape[0] > 1 else None)]

    def infer(self, node: Node, graph: Graph) -> bool:
        return node.inputs[0].axis == 1 and super().infer(node, graph)

    def true_attributes(self, module: Any) -> dict[str, int]:
        return {"num_parameters": module.weight.numel()}


class Identity(Pointwise):
    """Returns its operand: dropout in eval mode, contiguous, clone."""

    otherwise = GivenBack()

    def infer(self, node: Node, graph: Graph) -> bool:
        if draws(node) or not super().infer(node, graph):
            return False
        node.output.same_as = node.inputs[0]
        if node.inputs[0].carried.size:
            node.output.carry(node.inputs[0].carried, node.inputs[0].shares)
        return True


POINTWISE = Pointwise()
_ENTRY_BY_ENTRY = [
    *("relu", "relu6", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish", "hardsigmoid", "hardtanh"),
    *("leaky_relu", "softplus", "softsign", "tanh", "sigmoid", "log_sigmoid", "tanhshrink", "hardshrink"),
    *("softshrink", "threshold", "exp", "log", "abs", "neg", "sqrt", "square", "rsqrt", "reciprocal", "pow"),
    *("rpow", "clamp", "clip", "clamp_min", "clamp_max", "erf", "where", "masked_fill", "lerp"),
    *("addcmul", "gt", "ge", "lt", "le", "eq", "ne", "logical_and", "logical_or", "logical_not", "sign"),
    *("log1p", "expm1", "sin", "cos", "add", "sub", "rsub", "mul", "div", "rdiv", "rtruediv", "maximum"),
    *("minimum", "float", "double", "half", "bfloat16", "to", "type", "type_as"),
]
_GIVE_BACK = ["dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "contiguous", "clone", "detach"]

OPERATORS: dict[str, Rule] = {
    **dict.fromkeys(_ENTRY_BY_ENTRY, POINTWISE),
    **dict.fromkeys(_GIVE_BACK, Identity()),
    "prelu": PRelu(),
}
