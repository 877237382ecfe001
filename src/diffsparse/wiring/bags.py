"""Products for inference on maps that lie in memory with the images last: (nodes, H, W, images).

There each node, and each pixel of a node, is a contiguous row of numbers. Edges and filters both compute sums of
weighted rows, called bags, for which `embedding_bag` has a fast kernel.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, TypeGuard, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# For how many map sizes a convolution keeps its layout.
LAYOUTS = 4


class Mix(nn.Module, ABC):
    """What target nodes receive: maps (sources, H, W, images) to maps (outputs, H, W, images)."""

    bias: nn.Parameter | None

    def __init__(self, matrix: Tensor, bias: Tensor | None = None) -> None:
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

    def __init__(self, matrix: Tensor, bias: Tensor | None = None) -> None:
        super().__init__(matrix, bias)
        self.weight = _fixed(matrix)

    def _sums(self, rows: Tensor) -> Tensor:
        return torch.mm(self.weight, rows) if self.bias is None else torch.addmm(self.bias, self.weight, rows)


class SparseMix(Mix):
    """The product over existing edges only, in compressed rows: each target node is a bag of weighted rows.

    On CPUs `embedding_bag` takes about half the time of `torch.mm` with a sparse CSR matrix.
    """

    columns: Tensor
    starts: Tensor

    def __init__(self, matrix: Tensor, bias: Tensor | None = None) -> None:
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
    """A convolution as a sparse product for one map size, with one compressed row per output pixel.

    `offsets` (outputs, H, W, 1) is what constant maps add to the outputs `filled` that read them.
    """

    key: tuple[torch.Size, torch.dtype, torch.device]
    size: tuple[int, int]
    columns: Tensor
    starts: Tensor
    values: Tensor
    filled: Tensor
    offsets: Tensor


class SparseConv(nn.Module):
    """A convolution as a sparse product: each output pixel is a bag of input pixels.

    On CPUs, for more than a few images, this takes a tenth to half the time of a depthwise convolution. The layout for
    a map size holds a copy of the weights; the last `LAYOUTS` are kept until other weights are loaded.

    `conv` must satisfy `fits`. `live` lists the channels whose maps are given, by default all; the map of any other
    channel has its number in `fill` everywhere.

    Shape: (live channels, H, W, images) to (outputs, H', W', images).
    """

    bias: nn.Parameter | None
    live: Tensor
    fill: Tensor

    def __init__(self, conv: nn.Conv2d, live: Tensor | None = None, fill: Tensor | None = None) -> None:
        super().__init__()
        assert self.fits(conv)
        self.groups, self.stride, self.dilation = conv.groups, conv.stride, conv.dilation
        self.padding = cast(tuple[int, int], conv.padding)
        self.weight = _fixed(conv.weight)
        self.bias = None if conv.bias is None else _fixed(conv.bias[:, None, None, None])
        channels = torch.arange(conv.in_channels, device=conv.weight.device)
        self.register_buffer("live", channels if live is None else live)
        self.register_buffer("fill", conv.weight.new_zeros(len(channels)) if fill is None else fill)
        # replaced, never modified: several threads may run the forward pass
        self._layouts: tuple[_Layout, ...] = ()

    @staticmethod
    def fits(conv: object) -> TypeGuard[nn.Conv2d]:
        """Whether `conv` is a plain `Conv2d` with zero padding given as numbers."""
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
        # axes: output channel, output row and column, input channel, kernel row and column
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
        """Input positions along an axis, (outputs, kernel), and whether they lie within the map."""
        kernel, stride = self.weight.shape[2 + axis], self.stride[axis]
        padding, dilation = self.padding[axis], self.dilation[axis]
        first = torch.arange(0, size + 2 * padding - dilation * (kernel - 1), stride, device=device) - padding
        at = (first[:, None] + dilation * torch.arange(kernel, device=device)).int()
        return at, (at >= 0) & (at < size)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._layouts = ()

    def __getstate__(self) -> dict[str, Any]:
        # layouts are neither copied nor pickled
        return vars(self) | {"_layouts": ()}

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, stride={self.stride}, padding={self.padding}, groups={self.groups}"


def _bags(rows: Tensor, columns: Tensor, starts: Tensor, values: Tensor) -> Tensor:
    return F.embedding_bag(columns, rows, starts, mode="sum", per_sample_weights=values)


def _starts(counts: Tensor) -> Tensor:
    return counts.cumsum(0) - counts


def _fixed(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().contiguous().clone(), requires_grad=False)
