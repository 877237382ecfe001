"""Products on maps with the images last, (nodes, H, W, images), for inference.

There a node, and also a single pixel of it, is a contiguous row of numbers. So what nodes receive and what their
filters give are both sums of weighted rows, bags, for which `embedding_bag` has a quick kernel.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Bias = Tensor | None

LAYOUTS = 4
"""How many sizes of maps a convolution is kept laid out for."""


class Mix(nn.Module, ABC):
    """What target nodes receive: maps (sources, H, W, images) to maps (outputs, H, W, images)."""

    bias: nn.Parameter | None

    def __init__(self, matrix: Tensor, bias: Bias) -> None:
        super().__init__()
        self.outputs, self.sources = matrix.shape
        self.bias = None if bias is None else _fixed(bias[:, None])

    def forward(self, maps: Tensor) -> Tensor:
        return self._sums(maps.flatten(1)).view(self.outputs, *maps.shape[1:])

    @abstractmethod
    def _sums(self, rows: Tensor) -> Tensor:
        """Rows (sources, numbers) to rows (outputs, numbers)."""

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


class _Layout(NamedTuple):
    """The sparse product of a convolution on maps of one size: a compressed row for each pixel that it gives."""

    key: tuple[torch.Size, torch.dtype, torch.device]
    size: tuple[int, int]
    columns: Tensor
    starts: Tensor
    values: Tensor
    filled: Tensor
    """Outputs that read maps which are one number."""
    offsets: Tensor
    """What these add, (outputs, H, W, 1)."""


class SparseConv(nn.Module):
    """A convolution as a sparse product: each pixel it gives is a bag of the pixels it reads.

    On CPUs, with more than a few images, a depthwise convolution takes two to ten times as long. The product is laid
    out for the size of the maps and copies the weights; layouts of the last sizes are kept until others are loaded.

    Args:
        conv: one for which `fits` holds.
        live: the channels that there are maps of; all by default.
        fill: a number for each channel, which is all over the map of one that is not live.

    Shape: (live channels, H, W, images) to (outputs, H', W', images).
    """

    bias: nn.Parameter | None
    live: Tensor
    fill: Tensor

    def __init__(self, conv: nn.Conv2d, live: Tensor | None = None, fill: Tensor | None = None) -> None:
        super().__init__()
        assert self.fits(conv)
        assert not isinstance(conv.padding, str)
        self.groups, self.stride, self.padding, self.dilation = conv.groups, conv.stride, conv.padding, conv.dilation
        self.weight = _fixed(conv.weight)
        self.bias = None if conv.bias is None else _fixed(conv.bias[:, None, None, None])
        channels = torch.arange(conv.in_channels, device=conv.weight.device)
        self.register_buffer("live", channels if live is None else live)
        self.register_buffer("fill", conv.weight.new_zeros(len(channels)) if fill is None else fill)
        # replaced, never written to: several threads may be in the forward pass
        self._layouts: tuple[_Layout, ...] = ()

    @staticmethod
    def fits(conv: object) -> TypeGuard[nn.Conv2d]:
        """Whether it is a convolution that pads with zeros, by numbers."""
        return type(conv) is nn.Conv2d and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)

    def forward(self, maps: Tensor) -> Tensor:
        key = (maps.shape[:3], maps.dtype, maps.device)
        layout = next((one for one in self._layouts if one.key == key), None)
        if layout is None:
            layout = self._laid_out(*key)
            self._layouts = (layout, *self._layouts[: LAYOUTS - 1])
        pixels = _bags(maps.flatten(0, 2), layout.columns, layout.starts, layout.values)
        states = pixels.view(len(self.weight), *layout.size, maps.shape[3])
        if len(layout.filled):
            states[layout.filled] += layout.offsets
        return states if self.bias is None else states.add_(self.bias)

    def _laid_out(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> _Layout:
        maps, height, width = shape
        outputs, inputs, *_ = self.weight.shape
        down, inside_down = self._positions(height, 0, device)
        right, inside_right = self._positions(width, 1, device)
        # outputs, rows and columns of what they give, inputs, rows and columns of what is read
        pixel = down[None, :, None, None, :, None] * width + right[None, None, :, None, None, :]
        inside = inside_down[None, :, None, None, :, None] & inside_right[None, None, :, None, None, :]
        group = torch.arange(outputs, device=device) // (outputs // self.groups)
        channel = group[:, None] * inputs + torch.arange(inputs, device=device)
        map_of = torch.full_like(self.fill, -1, dtype=torch.int32, device=device)
        map_of[self.live] = torch.arange(maps, dtype=torch.int32, device=device)
        source = map_of[channel][:, None, None, :, None, None]
        read = inside & (source >= 0)
        weight = self.weight.to(device)[:, None, None]
        offsets = weight * inside * self.fill[channel][:, None, None, :, None, None] * (source < 0)
        filled = (map_of[channel] < 0).any(1).nonzero()[:, 0]
        return _Layout(
            key=(shape, dtype, device),
            size=(len(down), len(right)),
            columns=(source * (height * width) + pixel)[read],
            starts=_starts(read.sum((3, 4, 5)).flatten()).int(),
            values=weight.expand(read.shape)[read].to(dtype),
            filled=filled,
            offsets=offsets.sum((3, 4, 5))[filled, ..., None].to(dtype),
        )

    def _positions(self, size: int, axis: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """What is read along an axis, (given, of the kernel), and which of it lies within the map."""
        kernel, stride = self.weight.shape[2 + axis], self.stride[axis]
        padding, dilation = self.padding[axis], self.dilation[axis]
        first = torch.arange(0, size + 2 * padding - dilation * (kernel - 1), stride, device=device) - padding
        at = (first[:, None] + dilation * torch.arange(kernel, device=device)).int()
        return at, (at >= 0) & (at < size)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._layouts = ()

    def __getstate__(self) -> dict[str, Any]:
        # copies and files do without
        return vars(self) | {"_layouts": ()}

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, stride={self.stride}, padding={self.padding}, groups={self.groups}"


def _bags(rows: Tensor, columns: Tensor, starts: Tensor, values: Tensor) -> Tensor:
    return F.embedding_bag(columns, rows, starts, mode="sum", per_sample_weights=values)


def _starts(counts: Tensor) -> Tensor:
    return counts.cumsum(0) - counts


def _fixed(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().contiguous().clone(), requires_grad=False)
