"""Operators that work entry by entry on operands with channels along any dimensions."""

import numpy as np
from torch import Tensor

from diffsparse.compaction.graph import Graph, Node, Value
from diffsparse.compaction.masks import Mask, every
from diffsparse.compaction.rules.base import Rule, takes_number
from diffsparse.compaction.rules.dimensions import agree_aligned
from diffsparse.compaction.rules.grid import Grid, axes_of, facts, flattened, read
from diffsparse.compaction.rules.tracks import Tracks


class Broadcast(Rule):
    """Channels of the result lie along every dimension along which those of an operand lie."""

    reason = "operands whose channels lie along different dimensions"
    follows_vectors = True

    def infer(self, node: Node, graph: Graph) -> bool:
        out, dims = node.output, len(node.output.shape)
        axes = axes_of(node.inputs, dims)
        tracked = any(value.axes is not None for value in node.inputs)
        if not tracked or (axes and axes[0] < 0) or len(node.outputs) != 1 or not isinstance(node.result, Tensor):
            return False
        known = [facts(value, graph, axes, dims) for value in node.inputs]
        zeros = [zero for _, zero in known]
        fixed = _everywhere([constant for constant, _ in known])
        factors = {"mul": zeros, "div": zeros[:1]}.get(node.op, [])
        for zero in factors:
            fixed = fixed | zero
        trusted = out.known or not takes_number(node.op, node.args, node.kwargs)
        out.track(axes, flattened(fixed, out, axes), node.result)
        if not trusted:
            kept = [zero for zero, value in zip(zeros, node.inputs, strict=True) if value.axes is not None]
            trust_only_zeros(out, flattened(_everywhere(kept), out, axes))
        node.details = zeros if node.op == "mul" and len(zeros) == 2 else None
        return True

    def needs(self, node: Node) -> None:
        needed: Grid = node.output.need.reshape(node.output.grid)
        for position, value in enumerate(node.inputs):
            if node.details is None:
                read(value, needed)
                continue
            # a factor whose partner is zero is not read, unless it is zero itself
            own, other = node.details[position], node.details[1 - position]
            read(value, needed & (own | ~other))

    def unify_widths(self, node: Node) -> bool:
        return agree_aligned([node.output, *node.inputs])

    def tie(self, node: Node, tracks: Tracks) -> None:
        # dimensions are the same ones counted from the last
        labels = [list(range(len(value.shape)))[::-1] for value in (node.output, *node.inputs)]
        for value, own in zip(node.inputs, labels[1:], strict=True):
            if value.axes is not None:
                tracks.tie_grids(node.output, labels[0], value, own)

    def refusal(self, node: Node) -> str:
        moving = [value for value in node.inputs if value.axes is not None and value.depends_on_input]
        several = any(value.axis is None for value in moving)
        return "" if several or not moving else f"{node.op}: {self.reason}"


def _everywhere(grids: list[Grid]) -> Grid:
    result: Grid = np.ones((), bool)
    for grid in grids:
        result = np.asarray(result & grid)
    return result


def trust_only_zeros(out: Value, zeros: Mask) -> None:
    """Forget all but zeros that come from zeros: the operator takes a number, which may differ next time."""
    out.fixed = out.fixed & (out.numbers == 0) & zeros
    out.known = out.known and every(out.fixed)
