"""`scaled_dot_product_attention`: a head whose values are zero gives zero, and its queries and keys are not read."""

from math import prod
from typing import Any

import numpy as np

from diffsparse.compaction.graph import Graph, Node, Shape, Value
from diffsparse.compaction.masks import Mask, some
from diffsparse.compaction.rules.base import Rule, argument, pin
from diffsparse.compaction.rules.dimensions import agree_aligned, agree_along, count_along, keep_along, kept_along
from diffsparse.compaction.rules.grid import Grid, flattened, read
from diffsparse.compaction.rules.tracks import Tracks


class Attention(Rule):
    """Channels lie along the heads, the last dimension, or both."""

    reason = "attention over channels"

    def infer(self, node: Node, graph: Graph) -> bool:
        given = [argument(node, at, name) for at, name in enumerate(("query", "key", "value"))]
        out, values = node.output, given[2]
        if not all(isinstance(v, Value) and len(v.shape) == len(out.shape) for v in given):
            return False
        if values.axes is None or any(len(v.shape) - 2 in (v.axes or ()) for v in given):
            return False
        # a constant is its own average, unless a mask leaves nothing to average
        averages = argument(node, 3, "attn_mask") is None and not argument(node, 4, "dropout_p", 0.0)
        fixed = _spread(values.fixed if averages else values.zero, values, out)
        out.track(values.axes, flattened(fixed, out, values.axes), node.result)
        node.details = given
        return True

    def needs(self, node: Node) -> None:
        query, key, value = node.details
        needed: Grid = node.output.need.reshape(node.output.grid)
        read(value, _gathered(needed, value, node.output))
        used = np.asarray((needed & ~_spread(value.zero, value, node.output)).any(-1, keepdims=True))
        for factor, other in ((query, key), (key, query)):
            reads = used & ~_spread(other.zero, other, node.output) if other.axes is not None else used
            reads = reads & ~_spread(factor.zero, factor, node.output) if factor.axes is not None else reads
            read(factor, _gathered(reads, factor, node.output))
        for extra in node.inputs:
            if not any(extra is given for given in node.details):
                read(extra, used)

    def leans_on(self, node: Node) -> list[tuple[Value, Mask]]:
        # a zero makes a product zero, whatever the other factor is there
        moving = [value for value in node.details[:2] if value.axes is not None]
        return [(value, value.zero) for value in moving] if some(node.output.need) else []

    def unify_widths(self, node: Node) -> bool:
        """Heads go with their keys and values; what is within a head stays, unless scores can be scaled as before."""
        query, key, value = node.details
        out, changed = node.output, False
        pairs = ((query, key), (value, out)) if node.within and _alike(node) else ()
        free = (-1,) if pairs else ()
        changed |= agree_aligned([query, node.output], apart=(-2, -1), free=free)
        for mask in (v for v in node.inputs if all(v is not given for given in node.details)):
            changed |= agree_aligned([mask], apart=(-2, -1))
            if len(mask.shape) > 2:
                changed |= agree_along([(v, len(v.shape) - 3) for v in (mask, out)]) if mask.shape[-3] > 1 else False
        for shared in (key, value):
            changed |= agree_aligned([shared], apart=(-2, -1), free=free)
            changed |= _agree_heads(shared, out, free) if len(out.shape) > 2 else False
        for pair in pairs:
            changed |= agree_along([(v, len(v.shape) - 1) for v in pair])
        return changed

    def tie(self, node: Node, tracks: Tracks) -> None:
        query, key, value = node.details
        if not _alike(node):
            super().tie(node, tracks)
            return
        out, labels = node.output, list(range(len(node.output.shape)))
        for one, other in ((query, key), (out, value)):
            times = _times(other, out)
            if times == 1 or other.grid[-3] == 1:
                tracks.tie_grids(one, labels, other, labels)
            else:
                numbers = np.arange(other.channels).reshape(other.grid)
                tracks.tie(one, other, among=np.repeat(numbers, times, -3).reshape(-1))
            for each in (one, other):
                tracks.any_order(each, len(labels) - 1)
        tracks.pin([v for v in node.inputs if all(v is not given for given in node.details)])

    def macs(self, node: Node, graph: Graph) -> tuple[int, int]:
        """Queries times keys, and the result times values, for each head."""
        (query, key, _), out = node.details, node.output
        each = prod(out.shape[:-1]) * key.shape[-2]
        before = each * (query.shape[-1] + out.shape[-1])
        widths = [count_along(v, len(v.shape) - 1) if _inner(v) else v.shape[-1] for v in (query, out)]
        dim = len(out.shape) - 3
        heads = count_along(out, dim) if dim in (out.axes or ()) else out.shape[dim]
        return before, each * heads // out.shape[dim] * sum(widths)


def _inner(value: Value) -> bool:
    return value.axes is not None and len(value.shape) - 1 in value.axes


def _alike(node: Node) -> bool:
    """Whether channels within heads are followed in all operands and in the result, along the same dimensions."""
    values = [*node.details, node.output]
    return all(map(_inner, values)) and len({value.axes for value in values}) == 1


def _agree_heads(shared: Value, out: Value, free: Shape) -> bool:
    """Keep heads of the result and those of keys or values that they use together; whether anything changed."""
    dim, times = len(out.shape) - 3, _times(shared, out)
    if times == 1:
        return agree_aligned([shared, out], apart=(-2, -1), free=free)
    changed = False
    if shared.axes is not None and dim in shared.axes and out.axes is not None and dim in out.axes:
        together = kept_along(out, dim).reshape(-1, times).any(1) | kept_along(shared, dim)
        changed = keep_along(shared, dim, together)
        return keep_along(out, dim, np.repeat(together, times)) or changed
    return pin([shared, out])


def _times(value: Value, out: Value) -> int:
    """How many heads of the result share one of `value`, where queries come in groups."""
    return out.shape[-3] // value.shape[-3] if len(out.shape) > 2 and value.shape[-3] > 1 else 1


def _spread(mask: Any, value: Value, out: Value) -> Grid:
    grid = mask.reshape(value.grid)
    times = _times(value, out)
    return np.repeat(grid, times, -3) if times > 1 and grid.shape[-3] > 1 else np.asarray(grid)


def _gathered(reads: Grid, value: Value, out: Value) -> Grid:
    times = _times(value, out)
    if times == 1 or reads.shape[-3] == 1:
        return reads
    return np.asarray(reads.reshape(*reads.shape[:-3], -1, times, *reads.shape[-2:]).any(-3))


OPERATORS: dict[str, Rule] = {"scaled_dot_product_attention": Attention()}
