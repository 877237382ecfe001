"""What a plan keeps of a tensor."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeAlias

import torch
from torch import Tensor

from diffsparse.compaction.edit import index_tensor
from diffsparse.errors import SparsityError, require_whole


def _rising(where: str, indices: list[int]) -> None:
    if indices != sorted(set(indices)) or any(index < 0 for index in indices[:1]):
        raise SparsityError(f"{where} must be indices of at least 0 in rising order, got {indices!r:.50}")


Count: TypeAlias = Annotated[int, partial(require_whole, low=0)]
"""A number of channels, or a dimension."""
Indices: TypeAlias = Annotated[list[int], _rising]
"""Channels, in rising order."""
Widths: TypeAlias = tuple[Count, Count]
"""Channels before and after."""


@dataclass(frozen=True, kw_only=True)
class TensorSlice:
    """What stays of one parameter or buffer."""

    dims: dict[Count, Indices]
    """The indices that stay, by dimension."""
    columns: list[Indices] | None = None
    """For the weight of a grouped convolution: the inputs that stay in each group that stays."""
    heights: list[Count] | None = None
    """For groups of different sizes: how many outputs stay in each; columns are then padded with zeros."""
    shape: list[Count] | None = None
    """Shape before; None if unknown."""


def slice_tensor(tensor: Tensor, kept: TensorSlice, index: Any = index_tensor) -> Tensor:
    """What stays of `tensor`; `index` makes a tensor of indices for a device."""
    for dim, chosen in kept.dims.items():
        if kept.columns is None or dim == 0:
            tensor = tensor.index_select(dim, index(chosen, tensor.device))
    if kept.columns is None:
        return tensor
    heights = kept.heights or [len(tensor) // len(kept.columns)] * len(kept.columns)
    widest = max(map(len, kept.columns))
    picked = []
    for block, columns in zip(torch.split_with_sizes(tensor, heights), kept.columns, strict=True):
        taken = block.index_select(1, torch.tensor(columns, device=tensor.device))
        missing = taken.new_zeros(len(taken), widest - len(columns), *taken.shape[2:])
        picked.append(torch.cat([taken, missing], 1))
    return torch.cat(picked)
