"""Operators that treat every channel alike and by itself: pooling, resizing, padding, means over pixels."""

import numpy as np
from torch import Tensor

from diffsparse.compaction.graph import Graph, Mask, Node, Value
from diffsparse.compaction.rules.base import EachChannel, Rule, argument


def _any_nonzero(setting: object) -> bool:
    return any(setting) if isinstance(setting, tuple | list) else bool(setting)


class Spatial(EachChannel):
    """Works on the last dimensions; one number everywhere stays one number everywhere."""

    def __init__(self, dims: int | None = None) -> None:
        self.dims = dims

    def infer(self, node: Node, graph: Graph) -> bool:
        source, out = node.inputs[0], node.output
        if source.axis is None or not isinstance(node.result, Tensor) or len(node.inputs) != 1:
            return False
        axis = self.moved_axis(node, source)
        if axis is None:
            return False
        out.track(axis, self.fixed(node, source), node.result)
        return True

    def moved_axis(self, node: Node, source: Value) -> int | None:
        """Where the channels lie in the output; None if this operator mixes them."""
        assert source.axis is not None
        worked_on = len(source.shape) - 2 if self.dims is None else self.dims
        return source.axis if source.axis < len(source.shape) - worked_on else None

    def fixed(self, node: Node, source: Value) -> Mask:
        """Channels of the output that are one number."""
        return source.fixed.copy()


class AveragePool(Spatial):
    """Zeros that pad an average make a number other than zero vary at the border."""

    def fixed(self, node: Node, source: Value) -> Mask:
        padded = _any_nonzero(argument(node, 3, "padding", 0)) and argument(node, 5, "count_include_pad", True)
        divides = argument(node, 6, "divisor_override") is not None
        return source.zero if padded or divides else source.fixed.copy()


class Pad(Spatial):
    """`F.pad`: a fixed channel stays fixed if the border gets its own number."""

    def moved_axis(self, node: Node, source: Value) -> int | None:
        assert source.axis is not None
        return source.axis if source.axis < len(source.shape) - len(argument(node, 1, "pad")) // 2 else None

    def fixed(self, node: Node, source: Value) -> Mask:
        if not _any_nonzero(argument(node, 1, "pad")) or argument(node, 2, "mode", "constant") != "constant":
            return source.fixed.copy()
        border = argument(node, 3, "value", None) or 0.0
        return np.asarray(source.fixed & (source.numbers == border))


class Reduce(Spatial):
    """Mean, maximum or minimum over dimensions other than the channels'."""

    def moved_axis(self, node: Node, source: Value) -> int | None:
        assert source.axis is not None
        dim, keepdim = argument(node, 1, "dim"), argument(node, 2, "keepdim", False)
        if dim is None or isinstance(dim, bool):
            return None
        dims = {d % len(source.shape) for d in (dim if isinstance(dim, tuple | list) else [dim])}
        if source.axis in dims:
            return None
        return source.axis - (0 if keepdim else sum(d < source.axis for d in dims))


class Sum(Reduce):
    """A sum over pixels depends on how many there are, unless they are zero."""

    def fixed(self, node: Node, source: Value) -> Mask:
        return source.zero


SPATIAL = Spatial()

OPERATORS: dict[str, Rule] = {
    **{f"{kind}_pool{d}d": Spatial(d) for d in (1, 2, 3) for kind in ("max", "adaptive_avg", "adaptive_max")},
    **{f"avg_pool{d}d": AveragePool(d) for d in (1, 2, 3)},
    **dict.fromkeys(["interpolate", "upsample"], SPATIAL),
    "pad": Pad(),
    **dict.fromkeys(["mean", "amax", "amin"], Reduce()),
    "sum": Sum(),
}
