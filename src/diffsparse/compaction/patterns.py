"""Tensors that are the same for every input of a size: what they are at every size, over classes of positions."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diffsparse.compaction.graph import Value
from diffsparse.compaction.positions import Axis, common
from diffsparse.compaction.sizes import Sizes


@dataclass(frozen=True)
class Pattern:
    """What a tensor is at every size."""

    data: Tensor
    """In each dimension either the entries themselves, or one entry per class of positions."""
    axes: tuple[Axis | None, ...]
    """The classes of each dimension; None for a dimension of entries."""

    def has_entries(self, dims: set[int]) -> bool:
        """Whether these are dimensions of entries."""
        return all(self.axes[dim] is None for dim in dims)


def of_channels(value: Value, sizes: Sizes) -> Pattern | None:
    """A tensor whose channels are one number each; None if there are not always as many of them."""
    assert value.axes is not None
    if any(sizes[dim] is not None for dim in value.axes):
        return None
    axes = tuple(None if size is None else Axis.flat(size) for size in sizes)
    shape = [n if axis is None else 1 for n, axis in zip(value.shape, axes, strict=True)]
    # a copy, because masks and numbers may be read-only
    return Pattern(torch.tensor(value.numbers).view(value.grid).expand(shape), axes)


def of_entries(tensor: Tensor) -> Pattern:
    """A parameter or buffer."""
    data = tensor.detach().cpu()
    return Pattern(data.double() if data.is_floating_point() else data, (None,) * data.dim())


def aligned(patterns: list[Pattern]) -> tuple[list[Tensor], tuple[Axis | None, ...]] | None:
    """The contents over common classes, for an operation with broadcasting, and these; None if there are none."""
    data = [pattern.data for pattern in patterns]
    axes: list[Axis | None] = []
    for back in range(1, max(tensor.dim() for tensor in data) + 1):
        here = [i for i, pattern in enumerate(patterns) if len(pattern.axes) >= back]
        moving = {i: axis for i in here if (axis := patterns[i].axes[-back]) is not None}
        joint = common(list(moving.values())) if moving else None
        if moving and (joint is None or any(i not in moving and data[i].shape[-back] > 1 for i in here)):
            return None
        axes.append(None if joint is None else joint[0])
        for i, classes in zip(moving, joint[1] if joint is not None else (), strict=True):
            data[i] = data[i].index_select(data[i].dim() - back, classes)
    return data, tuple(reversed(axes))
