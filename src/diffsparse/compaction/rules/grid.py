"""Channels along several dimensions: masks that broadcast as the tensors do."""

from typing import Any, TypeAlias

import numpy as np

from diffsparse.compaction.graph import Graph, Shape, Value
from diffsparse.compaction.masks import Mask, as_array

Grid: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
"""A mask with one dimension per dimension of a tensor, of size 1 where nothing differs; aligned at the last."""


def axes_of(values: list[Value], dims: int) -> Shape:
    """Dimensions along which channels of any of these values lie, in a result with `dims` dimensions."""
    return tuple(sorted({axis + dims - len(value.shape) for value in values for axis in value.axes or ()}))


def facts(value: Value, graph: Graph, axes: Shape, dims: int) -> tuple[Grid, Grid]:
    """Where `value` is one number and where that is zero, as the result with channels along `axes` sees it."""
    if value.axes is not None and value.number is None:
        return value.fixed.reshape(value.grid), value.zero.reshape(value.grid)
    nothing = np.zeros((1,) * len(value.shape), bool)
    if value.parameter is None or 0 in value.shape:
        return (nothing, nothing) if value.number is None else (~nothing, nothing | (value.number == 0))
    offset, stored = dims - len(value.shape), as_array(graph.tensors[value.parameter].detach())
    others = tuple(dim for dim in range(stored.ndim) if dim + offset not in axes)
    least, most = stored.min(others, keepdims=True), stored.max(others, keepdims=True)
    return np.asarray(least == most), np.asarray((least == 0) & (most == 0))


def flattened(grid: Any, value: Value, axes: Shape) -> Mask:
    """A grid as a mask over the channels of `value` along `axes`."""
    shape = tuple(n if dim in axes else 1 for dim, n in enumerate(value.shape))
    return np.broadcast_to(grid, shape).reshape(-1)


def read(value: Value, reads: Grid) -> None:
    """Add to `need` of `value` what is read of a result that `value` is broadcast to."""
    if value.axes is None:
        return
    extra = reads.ndim - len(value.shape)
    if extra > 0:
        reads = np.asarray(reads.any(tuple(range(extra))))
    others = tuple(dim for dim in range(-reads.ndim, 0) if dim + len(value.shape) not in value.axes)
    # a value that is broadcast along one of its own axes is read there
    sizes = zip(range(-reads.ndim, 0), reads.shape, strict=True)
    others += tuple(dim for dim, size in sizes if dim not in others and value.shape[dim] < size)
    value.need |= np.broadcast_to(reads.any(others, keepdims=True), value.grid).reshape(-1)


def merged(value: Value, axis: int) -> Value:
    """A stand-in for `value` with what is known of its channels along `axis`, whatever lies along the others."""
    stand_in = Value(value.shape, depends_on_input=True)
    if value.axes is None or axis not in value.axes:
        return stand_in
    along = value.shape[axis], -1
    fixed = np.moveaxis(value.fixed.reshape(value.grid), axis, 0).reshape(along)
    numbers = np.moveaxis(value.numbers.reshape(value.grid), axis, 0).reshape(along)
    stand_in.track(axis, fixed.all(1) & (numbers == numbers[:, :1]).all(1))
    stand_in.numbers = np.where(stand_in.fixed, numbers[:, 0], 0.0)
    return stand_in
