"""Reshapes, splits and slices around heads: which indices may leave, and the sizes that a module then has to know."""

from math import gcd
from typing import Any

import numpy as np

from diffsparse.compaction.graph import Node, Value
from diffsparse.compaction.masks import how_many
from diffsparse.compaction.rules.base import argument, pin
from diffsparse.compaction.rules.dimensions import (
    agree_along,
    keep_all_along,
    keep_along,
    keep_whole,
    kept_along,
    widen_both,
)
from diffsparse.compaction.rules.groups import filled

_RESHAPES = frozenset({"view", "reshape", "unflatten"})
_PIECES = frozenset({"split", "chunk", "tensor_split"})
_INDEXING = frozenset({"getitem", "select", "narrow", "unbind", "index_select", "flip", "roll"})


def follow_heads(node: Node, base: Value, numbers: Any) -> bool:
    """Keep channels of what is moved, and of where it goes, together; whether anything changed.

    Args:
        node: a movement of entries.
        base: the value whose channels are moved.
        numbers: the channel of `base` at each channel of the first input.
    """
    source = node.inputs[0]
    changed = False if source is base else widen_both(base, source, numbers)
    changed |= keep_whole(source)
    for out in node.outputs:
        changed |= widen_both(base, out, out.taken_from[1]) or keep_whole(out)  # type: ignore[index]
        if node.op in _RESHAPES and out.axes is not None and len(out.axes) > 1 and not node.within:
            changed |= keep_all_along(out, out.axes[-1])
    if node.op in _PIECES:
        return _pieces_alike(node) or changed
    if node.op in _INDEXING:
        return _keep_indexed(node, numbers) or changed
    return changed


def _pieces_alike(node: Node) -> bool:
    """Pieces are cut at multiples of one width: they keep their proportions."""
    outs, changed = node.outputs, False
    dim = argument(node, 2, "dim", 0) % len(outs[0].shape)
    if any(out.axes is None or dim not in out.axes for out in outs):
        return pin([*node.inputs, *outs])
    if len({out.shape for out in outs}) == 1:
        return agree_along([(out, dim) for out in outs])
    if not node.within:
        return pin([*node.inputs, *outs])
    kept = [kept_along(out, dim) for out in outs]
    unit = gcd(*map(len, kept))
    most = max(-(-how_many(mask) * unit // len(mask)) for mask in kept)
    for out, mask in zip(outs, kept, strict=True):
        changed |= keep_along(out, dim, filled(mask, most * len(mask) // unit))
    return changed


def _keep_indexed(node: Node, numbers: Any) -> bool:
    """Keep dimensions along which entries are picked by position; along the others, all of them are passed on."""
    source, changed = node.inputs[0], False
    assert source.axes is not None
    order = np.argsort(numbers)
    if len(np.unique(numbers)) != len(numbers):
        return pin([*node.inputs, *node.outputs])
    for out in node.outputs:
        picked = order[np.searchsorted(numbers[order], out.taken_from[1])]  # type: ignore[index]
        places, own = _places(source, picked), _places(out, np.arange(out.channels))
        passed = {
            (axis, dim)
            for axis, there in places.items()
            for dim, here in own.items()
            if source.shape[axis] == out.shape[dim] and np.array_equal(there, here)
        }
        for axis in {*places} - {axis for axis, _ in passed}:
            changed |= keep_all_along(source, axis)
        for dim in {*own} - {dim for _, dim in passed}:
            changed |= keep_all_along(out, dim)
    return changed


def _places(value: Value, channels: Any) -> dict[int, Any]:
    """Where these channels lie along each axis."""
    if not value.axes:
        return {}
    sizes = tuple(value.shape[axis] for axis in value.axes)
    return dict(zip(value.axes, np.unravel_index(channels, sizes), strict=True))
