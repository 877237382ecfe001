"""Operators with several inputs or results on each channel by itself: sampling, pooling with indices, sorting."""

import numpy as np

from diffsparse.compaction.graph import Graph, Node
from diffsparse.compaction.masks import Mask
from diffsparse.compaction.rules.base import Rule, argument, pin, read_all, unite, widen
from diffsparse.compaction.rules.pointwise import POINTWISE
from diffsparse.compaction.rules.reduction import ReduceAxes
from diffsparse.compaction.rules.spatial import Reduce, Spatial


class GridSample(Rule):
    """Samples each channel at the same places; where it samples the border, zero stays zero."""

    reason = "channels that do not lie along dimension 1"

    def infer(self, node: Node, graph: Graph) -> bool:
        source, out = node.inputs[0], node.output
        if source.axis != 1 or len(node.inputs) != 2:
            return False
        pads = argument(node, 3, "padding_mode", "zeros") == "zeros"
        out.track(1, source.zero if pads else source.fixed, node.result)
        return True

    def needs(self, node: Node) -> None:
        source, places = node.inputs
        source.need |= node.output.need
        read_all(places)

    def unify_widths(self, node: Node) -> bool:
        source, places = node.inputs
        changed = unite([source, node.output])
        return pin([places]) or changed


class Unpool(Rule):
    """`max_unpool`: each channel has its own indices; what lies between is zero."""

    reason = "indices whose channels lie elsewhere"

    def __init__(self, dims: int) -> None:
        self.dims = dims

    def infer(self, node: Node, graph: Graph) -> bool:
        source, places = node.inputs
        if source.axis is None or source.axis != places.axis or source.axis >= len(source.shape) - self.dims:
            return False
        node.output.track(source.axis, source.zero, node.result)
        return True

    def needs(self, node: Node) -> None:
        for value in node.inputs:
            value.need |= node.output.need

    def unify_widths(self, node: Node) -> bool:
        return unite([*node.inputs, node.output])


class WithIndices(Spatial):
    """Pooling that also returns where the maximum was; where a channel is constant, that may be anywhere."""

    def infer(self, node: Node, graph: Graph) -> bool:
        source = node.inputs[0]
        axis = None if source.axis is None or len(node.inputs) != 1 else self.moved_axis(node, source.axis)
        if axis is None or len(node.outputs) != 2:
            return False
        values, places = node.outputs
        values.track(axis, source.fixed, node.result[0])
        places.track(axis)
        return True

    def needs(self, node: Node) -> None:
        for out in node.outputs:
            node.inputs[0].need |= out.need

    def unify_widths(self, node: Node) -> bool:
        return unite([*node.inputs, *node.outputs])


class Extreme(ReduceAxes):
    """The largest of all entries, or of two tensors at each entry."""

    otherwise = POINTWISE


class AlongWithIndices(WithIndices, Reduce):
    """`max`, `sort` or `topk` along a dimension: of a constant, all that is picked is that constant."""

    reason = "channels are compared with each other"
    otherwise = Extreme()

    def moved_axis(self, node: Node, axis: int) -> int | None:
        if node.op in {"max", "min"}:
            return Reduce.moved_axis(self, node, axis)
        default = -1 if node.op in {"sort", "topk", "kthvalue"} else None
        dim = argument(node, 1 if node.op in {"sort", "cummax", "cummin"} else 2, "dim", default)
        if not isinstance(dim, int) or isinstance(dim, bool) or dim % len(node.inputs[0].shape) == axis:
            return None
        lost = node.op == "kthvalue" and not argument(node, 3, "keepdim", False)
        return axis - (lost and dim % len(node.inputs[0].shape) < axis)


class Glu(Rule):
    """The first half times the sigmoid of the second; both halves stay or go together."""

    reason = "halves along another dimension than the channels"

    def infer(self, node: Node, graph: Graph) -> bool:
        source, out = node.inputs[0], node.output
        if source.axis is None or argument(node, 1, "dim", -1) % len(source.shape) != source.axis:
            return False
        first, second = source.fixed.reshape(2, -1)
        out.track(source.axis, (first & second) | source.zero.reshape(2, -1)[0], node.result)
        return True

    def needs(self, node: Node) -> None:
        source, needed = node.inputs[0], node.output.need
        first, second = source.need.reshape(2, -1)
        first |= needed
        second |= needed & ~source.zero.reshape(2, -1)[0]

    def unify_widths(self, node: Node) -> bool:
        source, out = node.inputs[0], node.output
        both: Mask = source.keep.reshape(2, -1).any(0) | out.keep
        changed = widen(out, both)
        return widen(source, np.concatenate([both, both])) or changed


OPERATORS: dict[str, Rule] = {
    "grid_sample": GridSample(),
    **{f"max_unpool{d}d": Unpool(d) for d in (1, 2, 3)},
    **{f"{kind}max_pool{d}d_with_indices": WithIndices(d) for d in (1, 2, 3) for kind in ("", "adaptive_")},
    **dict.fromkeys(["max", "min", "sort", "topk", "kthvalue", "cummax", "cummin"], AlongWithIndices()),
    "glu": Glu(),
}
