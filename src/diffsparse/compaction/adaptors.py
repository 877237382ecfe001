"""Small parts put around sliced layers: select in front, expand behind, constants in place of dead ones."""

from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError

SELECT, EXPAND, FILL = "select_index", "expand_index", "expand_fill"


class SelectInput:
    """Forward pre-hook: the layer gets only the channels it has weights for."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (_selected(args[0], self.dim, getattr(module, SELECT)), *args[1:])


def _selected(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The channels of `index`; what lies channels last does so afterwards."""
    if input.is_contiguous() or not (last := input.movedim(dim, -1)).is_contiguous():
        return input.index_select(dim, index)
    # as a matrix, which is several times as quick
    rows = last.reshape(-1, last.shape[-1]).index_select(1, index)
    return rows.view(*last.shape[:-1], -1).movedim(-1, dim)


class ExpandOutput:
    """Forward hook: channels that are one number come back between those the layer computes."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        fill: Tensor = getattr(module, FILL).to(output.dtype)
        shape = list(output.shape)
        shape[self.dim] = fill.numel()
        view = [1] * output.dim()
        view[self.dim] = -1
        return fill.view(view).expand(shape).index_copy(self.dim, getattr(module, EXPAND), output)


class PassOn(nn.Module):
    """Stands for a module that gives its first argument back."""

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return input


class Constant(nn.Module):
    """Stands for a layer whose output no longer depends on its input: one number a channel, at any size.

    Args:
        channels: channels of the output.
        dim: where they lie, counted from the end.
        window: how the layer changed each spatial size, as `(kernel, stride, padding, dilation)`, one for each; None
            for a layer that keeps the size.
        transposed: whether it was a transposed convolution; `window` then ends with the output padding.
    """

    numbers: Tensor

    def __init__(
        self, channels: int, dim: int, window: list[list[int]] | None = None, transposed: bool = False
    ) -> None:
        super().__init__()
        self.dim, self.window, self.transposed = dim, window, transposed
        self.register_buffer("numbers", torch.zeros(channels))

    def forward(self, input: Tensor) -> Tensor:
        shape = list(input.shape)
        shape[self.dim] = self.numbers.numel()
        for offset, setting in enumerate(self.window or []):
            at = len(shape) - len(self.window or []) + offset
            shape[at] = self._size(shape[at], setting)
        view = [1] * len(shape)
        view[self.dim] = -1
        # a tensor of its own, which code behind it may write to
        return self.numbers.to(input.dtype).view(view).expand(shape).clone()

    def _size(self, size: int, setting: list[int]) -> int:
        kernel, stride, padding, dilation, *extra = setting
        if self.transposed:
            return (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra[0] + 1
        return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1

    def store(self, constant: Tensor) -> None:
        """Write the numbers."""
        self.numbers.copy_(constant)

    def extra_repr(self) -> str:
        return f"{self.numbers.numel()}"


class ConstantMap(nn.Module):
    """Stands for a layer whose output is one map, the same for every input of the size it was compacted for.

    Args:
        shape: of the output, without the batch.
        input_size: size of the input that the map is valid for, without the batch; None for any number of channels.
    """

    map: Tensor

    def __init__(self, shape: list[int], input_size: list[int | None]) -> None:
        super().__init__()
        self.input_size = list(input_size)
        self.register_buffer("map", torch.zeros(1, *shape))

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # what else it was called with does not matter to a constant
        given = [None if wanted is None else n for wanted, n in zip(self.input_size, input.shape[1:], strict=True)]
        if given != self.input_size:
            raise SparsityError(
                "this layer became a constant map when it was compacted, valid for input of spatial size "
                f"{_numbers(self.input_size)}; got {_numbers(given)}. Compact again with an example of this size"
            )
        return self.map.to(input.dtype).expand(input.shape[0], *self.map.shape[1:]).clone()

    def store(self, constant: Tensor) -> None:
        """Write the map."""
        self.map.copy_(constant)

    def extra_repr(self) -> str:
        return f"{tuple(self.map.shape[1:])}, input_size={self.input_size}"


def _numbers(size: list[int | None]) -> list[int]:
    return [n for n in size if n is not None]
