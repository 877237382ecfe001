"""Modules and hooks that stand in a compact model: select, expand, constants, groups of different sizes."""

from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.compaction.remembered import Remembered
from diffsparse.compaction.stand_in import StandIn
from diffsparse.compaction.stretch import ForgetShape, NoteShape, Stretch, noted_shape, stretched

SELECT, EXPAND, FILL, ADDED = "select_index", "expand_index", "expand_fill", "added_map"
SOURCE = "expand_source"
"""Of an expand: where each channel behind it lies among what the layer computes and, after that, the fill."""
SIZES_OF = {FILL: "_sizes_of_fill", ADDED: "_sizes_of_added"}
"""Attributes of a layer with maps: the `NoteShape` of the module around it whose input tells their sizes."""
_CONVOLVE: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True)
class SelectInput:
    """Forward pre-hook: the layer gets only the channels it has weights for; memory stays channels last if it was."""

    dim: int
    start: int | None = None
    """The first of the channels, if they lie side by side."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        index = getattr(module, SELECT)
        if self.start is None:
            return _picked(args[0], self.dim, index), *args[1:]
        # a slice is a view, and kernels are faster on a copy of it where there are several samples
        return _like(args[0], args[0].narrow(self.dim, self.start, index.numel()), self.dim), *args[1:]


@dataclass(frozen=True)
class ExpandOutput:
    """Forward hook: puts constant channels back between those that the layer computes."""

    dim: int
    number: float | None = None
    """What all of these channels are, if it is one number."""
    start: int | None = None
    """Where the first channel of the layer goes, if they stay side by side."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        if self.number is None:
            return self._between(module, output, _spread(self._fill(module, output), self.dim, list(output.shape)))
        if self.start is None:
            return _picked(_padded(output, self.dim, (0, 1), self.number), self.dim, getattr(module, SOURCE))
        behind = getattr(module, FILL).numel() - self.start - output.shape[self.dim]
        return _padded(output, self.dim, (self.start, behind), self.number)

    @staticmethod
    def _fill(module: nn.Module, output: Tensor) -> Tensor:
        fill: Tensor = getattr(module, FILL)
        return fill.to(output.dtype)

    def _between(self, module: nn.Module, output: Tensor, fill: Tensor) -> Tensor:
        """The output and, where it has no channels, the fill; runtimes gather faster than they scatter."""
        return _picked(torch.cat([output, fill], self.dim), self.dim, getattr(module, SOURCE))


@dataclass(frozen=True)
class ExpandIntoMap(ExpandOutput):
    """Forward hook: as above, where some of the constant channels vary with the position."""

    stretches: tuple[Stretch | None, ...] = ()
    made: Remembered = field(default_factory=Remembered, compare=False, repr=False)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        shape = noted_shape(vars(module).get(SIZES_OF[FILL]), args[0])
        make = lambda: stretched(self._fill(module, output), self.stretches, shape)  # noqa: E731
        fill = self.made(getattr(module, FILL), output, shape, make)
        whole = list(output.shape)
        whole[self.dim] = fill.shape[self.dim]
        return self._between(module, output, fill.expand(whole))


def expand_source(live: list[int], width: int, one_number: bool) -> list[int]:
    """For each of `width` channels, where it lies in front of an expand: the live ones first, then the fill.

    Example:
        >>> expand_source([0, 2], 4, one_number=True), expand_source([0, 2], 4, one_number=False)
        ([0, 2, 1, 2], [0, 3, 1, 5])
    """
    places = {channel: place for place, channel in enumerate(live)}
    fill = len(live)
    return [places.get(channel, fill if one_number else fill + channel) for channel in range(width)]


def first_of_run(chosen: list[int]) -> int | None:
    """The first of these rising indices if they lie side by side, else None."""
    return chosen[0] if chosen and chosen[-1] - chosen[0] == len(chosen) - 1 else None


def _picked(given: Tensor, dim: int, index: Tensor) -> Tensor:
    """Channels by their index; memory stays channels last if it was."""
    if not _is_channels_last(given, dim):
        return given.index_select(dim, index)
    # as a matrix, which is several times faster
    last = given.movedim(dim, -1)
    rows = last.reshape(-1, last.shape[-1]).index_select(1, index)
    return rows.view(*last.shape[:-1], -1).movedim(-1, dim)


def _is_channels_last(given: Tensor, dim: int) -> bool:
    """Whether memory has the channels last; compilers and exporters lay out memory by themselves."""
    if given.is_contiguous() or torch.compiler.is_compiling() or torch._C._get_tracing_state():
        return False
    return given.movedim(dim, -1).is_contiguous()


def _like(given: Tensor, part: Tensor, dim: int) -> Tensor:
    """A slice of `given` with memory of its own, channels last if that of `given` is."""
    if not _is_channels_last(given, dim):
        return part.contiguous()
    return part.movedim(dim, -1).contiguous().movedim(-1, dim)


def _padded(given: Tensor, dim: int, by: tuple[int, int], number: float) -> Tensor:
    """More channels of one number in front and behind."""
    behind = given.dim() - 1 - dim % given.dim()
    return F.pad(given, [0] * (2 * behind) + [*by], value=number)


@dataclass(frozen=True)
class AddMap:
    """Forward hook: adds what inputs that are gone did to the outputs, where it varies with the position."""

    stretches: tuple[Stretch | None, ...]
    made: Remembered = field(default_factory=Remembered, compare=False, repr=False)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        table, shape = getattr(module, ADDED), noted_shape(vars(module).get(SIZES_OF[ADDED]), args[0])
        return output + self.made(
            table, output, shape, lambda: stretched(table.to(output.dtype), self.stretches, shape)
        )


BEHIND = (ExpandOutput, AddMap)
"""Hooks that change the output."""
ADAPTOR_HOOKS = (SelectInput, *BEHIND, NoteShape, ForgetShape)


def copy_adaptor_buffers(source: nn.Module, target: nn.Module) -> None:
    """Give `target` copies of what the hooks above keep in `source`."""
    for key in (SELECT, EXPAND, SOURCE, FILL, ADDED):
        if key in source._buffers:
            persistent = key not in source._non_persistent_buffers_set
            target.register_buffer(key, source.get_buffer(key).clone(), persistent=persistent)
    vars(target).update({key: vars(source)[key] for key in SIZES_OF.values() if key in vars(source)})


def _spread(numbers: Tensor, dim: int, shape: list[int]) -> Tensor:
    """One number per channel, expanded to a shape with as many channels along `dim`."""
    shape[dim] = numbers.numel()
    view = [1] * len(shape)
    view[dim] = -1
    return numbers.view(view).expand(shape)


class PassOn(StandIn):
    """Replaces a module that returns its first argument."""

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return input


class Constant(StandIn):
    """Replaces a layer whose output no longer depends on its input: one number per channel, at any size.

    Args:
        channels: channels of the output.
        dim: where they lie, counted from the end.
        window: how the layer changed each spatial size, as `(kernel, stride, padding, dilation)`, one per size; None
            for a layer that keeps the size.
        transposed: whether it was a transposed convolution; `window` then ends with the output padding.
        read_only: whether nobody writes to the output or holds it, so that it can be the same tensor every time.
    """

    numbers: Tensor

    def __init__(
        self,
        channels: int,
        dim: int,
        window: list[list[int]] | None = None,
        transposed: bool = False,
        read_only: bool = False,
    ) -> None:
        super().__init__()
        self.dim, self.window, self.transposed, self.read_only = dim, window or [], transposed, read_only
        self.register_buffer("numbers", torch.zeros(channels))
        self._made = Remembered()

    def forward(self, input: Tensor) -> Tensor:
        # not as an attribute, which would take longer than all the rest
        numbers = cast(Tensor, self._buffers["numbers"])

        def make() -> Tensor:
            shape = list(input.shape)
            for at, setting in enumerate(self.window, len(shape) - len(self.window)):
                shape[at] = self._size(shape[at], *setting)
            return _spread(numbers.to(input.dtype), self.dim, shape)

        return self._made.whole(numbers, input, input.shape, make, self.read_only)

    def _size(self, size: int, kernel: int, stride: int, padding: int, dilation: int, extra: int = 0) -> int:
        if self.transposed:
            return (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1
        return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1

    def extra_repr(self) -> str:
        return f"{self.numbers.numel()}"


class RaggedConv(StandIn):
    """A grouped convolution whose groups have different sizes, run one after the other.

    `weight` holds the groups below each other, padded with zeros to one width.

    Args:
        conv: the grouped convolution that it replaces; its weights are taken over as they are.
        blocks: outputs and inputs of each group.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, conv: Any, blocks: list[tuple[int, int]]) -> None:
        super().__init__()
        self.blocks = list(blocks)
        self.stride, self.padding, self.dilation = conv.stride, conv.padding, conv.dilation
        self.padding_mode = conv.padding_mode
        if self.padding_mode != "zeros":
            self._border = list(conv._reversed_padding_repeated_twice)
            self.padding = (0,) * len(self.stride)
        self.weight = conv.weight
        # also if there is none, so that one can be added
        self.register_parameter("bias", conv.bias)

    @property
    def out_channels(self) -> int:
        return len(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        convolve, given = _CONVOLVE[self.weight.dim() - 2], input
        if self.padding_mode != "zeros":
            given = F.pad(given, self._border, mode=self.padding_mode)
        parts, row, column = [], 0, 0
        for rows, columns in self.blocks:
            bias = None if self.bias is None else self.bias[row : row + rows]
            weight = self.weight[row : row + rows, :columns]
            piece = given.narrow(1, column, columns)
            parts.append(convolve(piece, weight, bias, self.stride, self.padding, self.dilation))
            row, column = row + rows, column + columns
        return torch.cat(parts, 1)

    def extra_repr(self) -> str:
        return f"blocks={self.blocks}, stride={self.stride}, padding={self.padding}"
