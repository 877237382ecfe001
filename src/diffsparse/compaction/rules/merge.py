"""Constant inputs go into the bias; of those that cannot, a few stand for all, at any size.

Behind zero padding a constant input has an effect that varies at the border, be it the convolution that pads or code in
front of a layer. But two constant inputs a and b have the effect of a alone, with weights `W_a + (b / a) W_b`. Likewise
for inputs that are made of the same few patterns, as those behind a transposed convolution of constants: as many of
them as there are patterns stand for all.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffsparse.compaction.masks import Mask, how_many, some, without
from diffsparse.compaction.rules.layer import Layer

_ROUNDING = 1e-12


def with_fewest_alike(layer: Layer, columns: Mask) -> Mask:
    """Those of the columns that have to stay: all that vary, and of those that are alike as few as stand for them."""
    if not layer.free or layer.input.axis is None or layer.given is not None:
        return columns
    alike, shares = layer.alike_inputs
    # what stands for the others must be right in all calls, whatever each of them reads
    alike = alike if layer.twins and some(columns) else alike & columns
    if how_many(alike) < 2:
        return columns
    return np.asarray(columns & ~alike | _basis(layer.groups, alike, shares))


def _basis(groups: int, alike: Mask, shares: Any) -> Mask:
    """Of each group of inputs a few that all of them are sums of, the largest first."""
    chosen = np.zeros(len(alike), bool)
    size = len(alike) // groups
    for start in sorted({int(index) // size * size for index in np.flatnonzero(alike)}):
        piece = slice(start, start + size)
        rest = np.where(alike[piece, None], shares[piece], 0.0)
        least = _ROUNDING * np.abs(rest).max()
        for _ in range(rest.shape[1]):
            lengths = np.sqrt((rest**2).sum(1))
            largest = int(lengths.argmax())
            if lengths[largest] <= least:
                break
            chosen[start + largest] = True
            unit = rest[largest] / lengths[largest]
            rest = rest - np.outer(rest @ unit, unit)
    return chosen


def merged_constants(layer: Layer, weight: Tensor) -> Tensor | None:
    """What to add to the weight, so that inputs that stay do what those that are gone did; None for nothing."""
    if not layer.free or layer.input.axis is None or layer.given is not None:
        return None
    alike, shares = layer.alike_inputs
    gone = without(alike & ~layer.columns, layer.mapped_columns)
    if not some(gone):
        return None
    staying = _basis(layer.groups, layer.columns & alike, shares)
    whole = weight.detach().double().cpu().contiguous()
    # (groups, outputs, inputs, ...)
    blocks = whole.view(layer.groups, -1, *whole.shape[1:])
    blocks = blocks.transpose(1, 2) if layer.transposed else blocks
    extra, size = torch.zeros_like(blocks), blocks.shape[2]
    for group in sorted({int(index) // size for index in np.flatnonzero(gone)}):
        piece = slice(group * size, (group + 1) * size)
        here, there = np.flatnonzero(staying[piece]), np.flatnonzero(gone[piece])
        # each that is gone as a sum of those that stay
        parts = np.linalg.lstsq(shares[piece][here].T, shares[piece][there].T, rcond=None)[0]
        moved = torch.tensordot(torch.from_numpy(parts), blocks[group][:, there], ([1], [1]))
        extra[group][:, here] = moved.transpose(0, 1)
    return (extra.transpose(1, 2) if layer.transposed else extra).flatten(0, 1)


def fold_into_bias(layer: Layer, weight: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What the fixed inputs that were removed add to each output."""
    if not layer.folds or layer.input.axis is None:
        return np.zeros(len(layer.rows))
    gone = np.where(layer.fixed_inputs & ~layer.columns, layer.input.numbers, 0.0)
    if not gone.any():
        return np.zeros(len(layer.rows))
    summed = weight.detach().double().cpu()
    summed = summed.flatten(2).sum(2) if summed.dim() > 2 else summed
    summed = summed.T if layer.transposed else summed
    blocks = summed.numpy().reshape(layer.groups, -1, summed.shape[1])
    return np.asarray(np.einsum("goi,gi->go", blocks, gone.reshape(layer.groups, -1)).reshape(-1))
