"""Means, sums and maxima over dimensions along which channels lie, among others."""

from typing import ClassVar

import numpy as np
from torch import Tensor

from diffsparse.compaction.graph import Graph, Node, Shape
from diffsparse.compaction.rules.base import Rule, argument
from diffsparse.compaction.rules.grid import Grid, flattened, read


class ReduceAxes(Rule):
    """What is left is one number if all that it is made of is; widths are kept."""

    reason = "a reduction over unknown dimensions"
    counts: ClassVar[bool] = False
    """Whether the result depends on how many entries there are."""

    def infer(self, node: Node, graph: Graph) -> bool:
        source, out = node.inputs[0], node.output
        if source.axes is None or len(node.inputs) != 1 or not isinstance(node.result, Tensor):
            return False
        dims = _reduced(node)
        left = [dim for dim in range(len(source.shape)) if dim not in dims]
        kept = list(range(len(source.shape))) if len(out.shape) == len(source.shape) else left
        axes = tuple(kept.index(dim) for dim in source.axes if dim in left)
        fixed = (source.zero if self.counts else source.fixed).reshape(source.grid).all(dims, keepdims=True)
        out.track(axes, flattened(fixed.reshape([fixed.shape[dim] for dim in kept]), out, axes), node.result)
        node.details = kept
        return True

    def needs(self, node: Node) -> None:
        source, out = node.inputs[0], node.output
        shape = np.ones(len(source.shape), int)
        shape[node.details] = out.grid
        reads: Grid = out.need.reshape(shape)
        read(source, reads)

    def refusal(self, node: Node) -> str:
        several = node.inputs[0].axis is None
        return "" if several else f"{node.op}: all channels are read together"


class SumAxes(ReduceAxes):
    """A sum depends on how many entries there are, unless they are zero."""

    counts = True


def _reduced(node: Node) -> Shape:
    dims, dim = len(node.inputs[0].shape), argument(node, 1, "dim")
    if dim is None or isinstance(dim, bool) or dim == ():
        return tuple(range(dims))
    return tuple(d % dims for d in (dim if isinstance(dim, tuple | list) else [dim]))
