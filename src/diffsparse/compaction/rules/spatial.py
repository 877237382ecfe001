"""Operators on the pixels of each channel: pooling, resizing, padding, means."""

from typing import ClassVar

import numpy as np
from torch import Tensor

from diffsparse.compaction.graph import Graph, Node, Value
from diffsparse.compaction.masks import Mask
from diffsparse.compaction.rules.assembly import Padded
from diffsparse.compaction.rules.base import EachChannel, Rule, argument, read_all
from diffsparse.compaction.rules.reduction import ReduceAxes, SumAxes


def _any_nonzero(setting: object) -> bool:
    return any(setting) if isinstance(setting, tuple | list) else bool(setting)


class Spatial(EachChannel):
    """Works on the last dimensions; a constant channel stays constant."""

    def __init__(self, dims: int | None = None) -> None:
        self.dims = dims

    def infer(self, node: Node, graph: Graph) -> bool:
        source = node.inputs[0]
        axis = self.moved_axis(node, source.axis) if source.axis is not None and len(self.operands(node)) == 1 else None
        if axis is None or not isinstance(node.result, Tensor):
            return False
        node.output.track(axis, self.fixed(node, source), node.result)
        return True

    def operands(self, node: Node) -> list[Value]:
        """Its inputs that have pixels."""
        return node.inputs

    def moved_axis(self, node: Node, axis: int) -> int | None:
        """Where the channels along `axis` of the input lie in the output; None if the operator mixes them."""
        dims = len(node.inputs[0].shape)
        return axis if axis < (2 if self.dims is None else dims - self.dims) else None

    def fixed(self, node: Node, source: Value) -> Mask:
        """Channels of the output that are one number."""
        return source.fixed


class AveragePool(Spatial):
    """With zero padding, a constant other than zero varies at the border."""

    def fixed(self, node: Node, source: Value) -> Mask:
        padded = _any_nonzero(argument(node, 3, "padding", 0)) and argument(node, 5, "count_include_pad", True)
        divides = argument(node, 6, "divisor_override") is not None
        return source.zero if padded or divides else source.fixed


class Pad(Spatial):
    """`F.pad`: a fixed channel stays fixed if the border gets its own number."""

    otherwise = Padded()

    def operands(self, node: Node) -> list[Value]:
        # how much to pad may be given by tensors
        return [value for value in node.inputs if not any(value is amount for amount in argument(node, 1, "pad"))]

    def infer(self, node: Node, graph: Graph) -> bool:
        if not super().infer(node, graph):
            return False
        source = node.inputs[0]
        if argument(node, 2, "mode", "constant") == "constant" and not argument(node, 3, "value", None):
            known = (source.carried, source.shares) if source.carried.size else (source.fixed, source.numbers)
            node.output.carry(*known)
        return True

    def needs(self, node: Node) -> None:
        super().needs(node)
        for amount in node.inputs[1:]:
            read_all(amount)

    def moved_axis(self, node: Node, axis: int) -> int | None:
        pads, first = argument(node, 1, "pad"), 2 * (len(node.inputs[0].shape) - 1 - axis)
        return axis if all(type(amount) is int and amount == 0 for amount in pads[first : first + 2]) else None

    def fixed(self, node: Node, source: Value) -> Mask:
        if not _any_nonzero(argument(node, 1, "pad")) or argument(node, 2, "mode", "constant") != "constant":
            return source.fixed
        border = argument(node, 3, "value", None) or 0.0
        return np.asarray(source.fixed & (source.numbers == border))


class Reduce(Spatial):
    """Mean, maximum or minimum over dimensions other than the channels'."""

    otherwise: ClassVar[Rule | None] = ReduceAxes()

    def moved_axis(self, node: Node, axis: int) -> int | None:
        dim, keepdim = argument(node, 1, "dim"), argument(node, 2, "keepdim", False)
        if dim is None or isinstance(dim, bool):
            return None
        dims = {d % len(node.inputs[0].shape) for d in (dim if isinstance(dim, tuple | list) else [dim])}
        return None if axis in dims else axis - (0 if keepdim else sum(d < axis for d in dims))


class Sum(Reduce):
    """A sum over pixels depends on how many there are, unless they are zero."""

    otherwise = SumAxes()

    def fixed(self, node: Node, source: Value) -> Mask:
        return source.zero


OPERATORS: dict[str, Rule] = {
    **{f"{kind}_pool{d}d": Spatial(d) for d in (1, 2, 3) for kind in ("max", "adaptive_avg", "adaptive_max")},
    **{f"avg_pool{d}d": AveragePool(d) for d in (1, 2, 3)},
    **dict.fromkeys(["interpolate", "upsample"], Spatial()),
    "pad": Pad(),
    **dict.fromkeys(["mean", "amax", "amin"], Reduce()),
    "sum": Sum(),
}
