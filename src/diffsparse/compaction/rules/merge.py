"""Constant inputs that cannot be folded into the bias: one of them stands for all, at any size.

Behind zero padding a constant input has an effect that varies at the border, be it the convolution that pads or code in
front of a layer. But two constant inputs a and b have the effect of a alone, with weights `W_a + (b / a) W_b`.
"""

import numpy as np
import torch
from torch import Tensor

from diffsparse.compaction.graph import Mask, how_many, some, without
from diffsparse.compaction.rules.layer import Layer


def with_one_constant(layer: Layer, columns: Mask) -> Mask:
    """Those of the columns that have to stay: all that vary, and of each group the constant that is largest."""
    if not layer.free or layer.input.axis is None or layer.given is not None:
        return columns
    constant = layer.alike_inputs
    # what stands for the others must be right in all calls, whatever each of them reads
    constant = constant if layer.twins and some(columns) else constant & columns
    if how_many(constant) < 2:
        return columns
    return np.asarray(columns & ~constant | _largest(layer, constant))


def _largest(layer: Layer, constant: Mask) -> Mask:
    """Of each group of inputs the constant with the largest number."""
    size = np.where(constant, np.abs(layer.input.numbers), 0.0).reshape(layer.groups, -1)
    chosen = np.zeros(size.shape, bool)
    groups = np.flatnonzero(size.max(1) > 0)
    chosen[groups, size[groups].argmax(1)] = True
    return chosen.reshape(-1)


def merged_constants(layer: Layer, weight: Tensor) -> Tensor | None:
    """What to add to the weight, so that constants that stay do what those that are gone did; None for nothing."""
    if not layer.free or layer.input.axis is None or layer.given is not None:
        return None
    alike = layer.alike_inputs
    gone = np.where(without(alike & ~layer.columns, layer.mapped_columns), layer.input.numbers, 0.0)
    if not gone.any():
        return None
    staying = _largest(layer, layer.columns & alike)
    share = np.zeros((layer.groups, len(gone) // layer.groups))
    for group, place in zip(*np.nonzero(staying.reshape(share.shape)), strict=True):
        share[group] = gone.reshape(share.shape)[group] / layer.input.numbers.reshape(share.shape)[group, place]
    whole = weight.detach().double().cpu().contiguous()
    # (groups, outputs, inputs, ...)
    blocks = whole.view(layer.groups, -1, *whole.shape[1:])
    blocks = blocks.transpose(1, 2) if layer.transposed else blocks
    added = torch.einsum("goi...,gi->go...", blocks, torch.from_numpy(share))
    at = torch.from_numpy(staying.reshape(layer.groups, 1, -1)).double()
    extra = added.unsqueeze(2) * at.view(*at.shape, *[1] * (whole.dim() - 2))
    return (extra.transpose(1, 2) if layer.transposed else extra).flatten(0, 1)
