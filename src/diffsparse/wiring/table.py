"""A stage for inference, on maps with the images last: (nodes, H, W, images).

There a node, and also a single pixel of it, is a contiguous row of numbers. So what nodes receive and what their
filters give are both sums of weighted rows, for which `embedding_bag` has a quick kernel.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Bias = Tensor | None


class Mix(nn.Module):
    """What target nodes receive: maps (sources, H, W, images) to maps (outputs, H, W, images)."""

    bias: nn.Parameter | None

    def __init__(self, matrix: Tensor, bias: Bias) -> None:
        super().__init__()
        self.outputs, self.sources = matrix.shape
        self.bias = None if bias is None else _fixed(bias[:, None])

    def forward(self, maps: Tensor) -> Tensor:
        return self._sums(maps.flatten(1)).view(self.outputs, *maps.shape[1:])

    def _sums(self, rows: Tensor) -> Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"sources={self.sources}, outputs={self.outputs}"


class DenseMix(Mix):
    """One dense matrix product."""

    def __init__(self, matrix: Tensor, bias: Bias = None) -> None:
        super().__init__(matrix, bias)
        self.weight = _fixed(matrix)

    def _sums(self, rows: Tensor) -> Tensor:
        return torch.mm(self.weight, rows) if self.bias is None else torch.addmm(self.bias, self.weight, rows)


class SparseMix(Mix):
    """The product with the edges only, in compressed rows.

    Each target node is a bag of weighted rows. On CPUs the kernel of `embedding_bag` takes about half the time of
    `torch.mm` with a sparse CSR matrix, and its operands are plain tensors.
    """

    columns: Tensor
    starts: Tensor

    def __init__(self, matrix: Tensor, bias: Bias = None) -> None:
        super().__init__(matrix, bias)
        rows, columns = matrix.nonzero(as_tuple=True)
        self.register_buffer("columns", columns)
        self.register_buffer("starts", _starts(torch.bincount(rows, minlength=self.outputs)))
        self.values = _fixed(matrix[rows, columns])

    def _sums(self, rows: Tensor) -> Tensor:
        sums = _bags(rows, self.columns, self.starts, self.values.to(rows.dtype))
        return sums if self.bias is None else sums.add_(self.bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, edges={self.values.numel()}"


class _Reads(NamedTuple):
    """Which pixels the filters read on maps of one size, as compressed rows: a row for each pixel they give."""

    given: tuple[torch.Size, torch.dtype, torch.device]
    size: tuple[int, int]
    columns: Tensor
    starts: Tensor
    values: Tensor


class SparseFilters(nn.Module):
    """A depthwise convolution as a sparse product: each pixel it gives is a bag of the pixels its filter reads.

    On CPUs, with more than a few images, it takes a tenth to half of the time of the convolution. The product is laid
    out for the size of the maps, and again when that changes.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        assert not isinstance(conv.padding, str)
        self.stride, self.padding = conv.stride, conv.padding
        self.weight = _fixed(conv.weight[:, 0])
        self._reads: _Reads | None = None

    def forward(self, maps: Tensor) -> Tensor:
        given = (maps.shape[:3], maps.dtype, maps.device)
        reads = self._reads
        if reads is None or reads.given != given:
            self._reads = reads = self._laid_out(*given)
        pixels = _bags(maps.flatten(0, 2), reads.columns, reads.starts, reads.values)
        return pixels.view(len(maps), *reads.size, maps.shape[3])

    def _laid_out(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> _Reads:
        nodes, height, width = shape
        down, inside_down = self._positions(height, 0, device)
        right, inside_right = self._positions(width, 1, device)
        # of one node: rows and columns it gives, rows and columns of its filter
        pixel = down[:, None, :, None] * width + right[None, :, None, :]
        inside = (inside_down[:, None, :, None] & inside_right[None, :, None, :]).expand(nodes, *pixel.shape)
        first = torch.arange(nodes, device=device).view(-1, 1, 1, 1, 1) * (height * width)
        return _Reads(
            given=(shape, dtype, device),
            size=(len(down), len(right)),
            columns=(first + pixel)[inside].int(),
            starts=_starts(inside.sum((3, 4)).flatten()).int(),
            values=self.weight[:, None, None].expand(inside.shape)[inside].to(device, dtype),
        )

    def _positions(self, size: int, axis: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """What is read along an axis, (given, of the filter), and which of it lies within the map."""
        kernel, stride, padding = self.weight.shape[1 + axis], self.stride[axis], self.padding[axis]
        first = torch.arange(0, size + 2 * padding - kernel + 1, stride, device=device) - padding
        at = first[:, None] + torch.arange(kernel, device=device)
        return at, (at >= 0) & (at < size)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._reads = None

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, stride={self.stride}, padding={self.padding}"


class SparseNodes(nn.Module):
    """The nodes of a group on maps with the images last.

    Args:
        norm: a module that acts on each channel by itself, for maps (N, nodes, H, W).
        conv: the filters, a depthwise convolution without bias.
        inplace: whether the maps it is given may be written to.
    """

    def __init__(self, norm: nn.Module, conv: nn.Conv2d, *, inplace: bool) -> None:
        super().__init__()
        self.norm, self.filter, self.inplace = norm, SparseFilters(conv), inplace

    def forward(self, maps: Tensor) -> Tensor:
        # to the norm, all images are one wide image
        normed: Tensor = self.norm(maps.flatten(2)[None])[0]
        state: Tensor = self.filter(F.relu(normed, self.inplace).view(len(normed), *maps.shape[1:]))
        return state


class ImagesLast(nn.Module):
    """Lays maps (N, C, H, W) out in memory with the images last."""

    def forward(self, x: Tensor) -> Tensor:
        return images_last(x).permute(3, 0, 1, 2)


class OnMaps(nn.Module):
    """A module for maps (N, channels, H, W), run on maps with the images last."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, maps: Tensor) -> Tensor:
        return images_last(self.module(_images_first(maps)))


class TableStage(nn.Module):
    """Nodes and mixes of a stage, for inference: states are written into one table, and mixes read from there.

    A concatenation in front of each target group would copy all earlier states again and again. A batch is run in
    pieces whose table stays in the cache.

    Args:
        nodes: for each source group a module from maps to maps, all with the images last.
        mixes: for each target group one.
        rows: how many maps all nodes give together.
        images: how many images are run at once.
        contiguous: whether the output lies as usual in memory; if not, it does so with the images last.

    Shape: (N, inputs, H, W) to (N, outputs, H', W').
    """

    def __init__(
        self, nodes: nn.ModuleList, mixes: nn.ModuleList, rows: int, images: int, *, contiguous: bool = True
    ) -> None:
        super().__init__()
        self.nodes, self.mixes, self.rows, self.images, self.contiguous = nodes, mixes, rows, images, contiguous

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        starts = range(0, max(len(x), 1), self.images)
        parts = [self._run(images_last(x[first : first + self.images])) for first in starts]
        maps = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return _images_first(maps) if self.contiguous else maps.permute(3, 0, 1, 2)

    def _run(self, maps: Tensor) -> Tensor:
        if len(self.nodes) == 1:
            sums: Tensor = self.mixes[0](self.nodes[0](maps))
            return sums
        table: Tensor | None = None
        filled = 0
        for group, mix in zip(self.nodes, self.mixes, strict=True):
            state = group(maps)
            table = state.new_empty(self.rows, *state.shape[1:]) if table is None else table
            table[filled : filled + len(state)] = state
            filled += len(state)
            maps = mix(table[:filled])
        return maps

    def extra_repr(self) -> str:
        return f"rows={self.rows}, images={self.images}"


def images_last(x: Tensor) -> Tensor:
    """Maps (N, C, H, W) as contiguous (C, H, W, N)."""
    if x.is_contiguous():
        # as a matrix, which torch transposes several times as quickly
        return x.flatten(1).t().contiguous().view(*x.shape[1:], len(x))
    return x.permute(1, 2, 3, 0).contiguous()


def _images_first(maps: Tensor) -> Tensor:
    """Contiguous maps (C, H, W, N) as contiguous (N, C, H, W)."""
    return maps.flatten(0, 2).t().contiguous().view(maps.shape[3], *maps.shape[:3])


def _bags(rows: Tensor, columns: Tensor, starts: Tensor, values: Tensor) -> Tensor:
    return F.embedding_bag(columns, rows, starts, mode="sum", per_sample_weights=values)


def _starts(counts: Tensor) -> Tensor:
    return counts.cumsum(0) - counts


def _fixed(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().contiguous().clone(), requires_grad=False)
