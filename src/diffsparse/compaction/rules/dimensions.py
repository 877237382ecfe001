"""Widths of tensors with channels along several dimensions: whole indices of a dimension stay or go."""

from typing import Any

import numpy as np

from diffsparse.compaction.graph import Shape, Value
from diffsparse.compaction.masks import Mask, how_many, some
from diffsparse.compaction.rules.base import widen

Place = tuple[Value, int]
"""A tensor and one of its dimensions."""


def _others(value: Value, dim: int) -> Shape:
    return tuple(other for other in range(len(value.shape)) if other != dim)


def kept_along(value: Value, dim: int) -> Mask:
    """Which indices along one of its axes hold a channel that stays."""
    return np.asarray(value.keep.reshape(value.grid).any(_others(value, dim)))


def count_along(value: Value, dim: int) -> int:
    """How many indices along one of its axes stay."""
    return how_many(kept_along(value, dim)) if value.widths is None else value.widths[dim]


def keep_whole(value: Value) -> bool:
    """Keep whole indices of each dimension only; whether anything changed."""
    if value.axes is None or value.axis is not None:
        return False
    product = np.ones(value.grid, bool)
    for axis in value.axes:
        product &= value.keep.reshape(value.grid).any(_others(value, axis), keepdims=True)
    return widen(value, product.reshape(-1))


def keep_along(value: Value, dim: int, mask: Mask) -> bool:
    """Keep these indices along one of its axes, too; whether anything changed."""
    own = kept_along(value, dim)
    if not some(mask > own):
        return False
    shape = [-1 if other == dim else 1 for other in range(len(value.shape))]
    rest = value.keep.reshape(value.grid).any(dim, keepdims=True)
    if not rest.any():
        # a tensor of which nothing stays yet has no other dimension to go by: one index of each will do
        rest.reshape(-1)[0] = True
    return widen(value, np.broadcast_to((own | mask).reshape(shape) & rest, value.grid).reshape(-1))


def keep_all_along(value: Value, dim: int) -> bool:
    """Keep all indices along one of its axes, of what is kept at all; whether anything changed."""
    return some(value.keep) and keep_along(value, dim, np.ones(value.shape[dim], bool))


def agree_along(places: list[Place]) -> bool:
    """Keep the same indices along these dimensions, or all if one tensor is not tracked; whether anything changed."""
    places = [(value, dim) for value, dim in places if value.shape[dim] > 1]
    if not places:
        return False
    tracked = [(value, dim) for value, dim in places if value.axes is not None and dim in value.axes]
    sizes = {value.shape[dim] for value, dim in places}
    changed = False
    if len(tracked) != len(places) or len(sizes) != 1:
        for value, dim in tracked:
            changed |= keep_all_along(value, dim)
        return changed
    together = np.logical_or.reduce([kept_along(value, dim) for value, dim in tracked])
    for value, dim in tracked:
        changed |= keep_along(value, dim, together)
    return changed


def agree_aligned(values: list[Value], apart: Shape = (), free: Shape = ()) -> bool:
    """Keep the same indices along dimensions that are broadcast together.

    Dimensions are counted from the end: those in `apart` are kept as a whole, those in `free` are left alone.
    """
    changed = False
    for back in range(-max(len(value.shape) for value in values), 0):
        places = [(value, back + len(value.shape)) for value in values if back + len(value.shape) >= 0]
        if back in free:
            continue
        if back in apart:
            for value, dim in places:
                if value.axes is not None and dim in value.axes:
                    changed |= keep_all_along(value, dim)
        else:
            changed |= agree_along(places)
    return changed


def widen_both(coarse: Value, fine: Value, channel: Any) -> bool:
    """Keep a channel of `coarse` and the channels of `fine` that belong to it together; whether anything changed."""
    wanted = np.zeros(coarse.channels, bool)
    np.logical_or.at(wanted, channel, fine.keep)
    changed = widen(fine, coarse.keep[channel])
    return widen(coarse, wanted) or changed
