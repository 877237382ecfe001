"""Constants of a compact model that vary with the position: a table over classes of positions, for any size."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from diffsparse.compaction.remembered import Remembered
from diffsparse.compaction.stand_in import StandIn
from diffsparse.errors import SparsityError, require_whole

_Whole: TypeAlias = Annotated[int, partial(require_whole, low=0)]
_Positive: TypeAlias = Annotated[int, partial(require_whole, low=1)]


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """How one dimension of a table becomes a dimension of the output, as `positions.Axis` has it."""

    dim: _Whole
    """The dimension of the input that tells its size."""
    steps: list[tuple[_Positive, int]] = field(default_factory=list)
    """How the size n of the image follows from that of the input: n becomes `(n - least) // stride + 1`."""
    stride: _Positive = 1
    least: int = 1
    left: _Whole = 0
    right: _Whole = 0

    def classes(self, shape: torch.Size, device: torch.device) -> Tensor:
        """The class of every position, for an input of this shape."""
        size: Any = shape[self.dim]
        for stride, least in (*self.steps, (self.stride, self.least)):
            image, size = size, (size - least) // stride + 1
            if size < 1 and shape[self.dim]:
                raise SparsityError(f"an input of shape {tuple(shape)} is too small for the layers that were compacted")
            # of an empty input, layers that look at single positions make an empty output
            size = max(size, 0)
        first = torch.arange(size, device=device)
        rest: Tensor = image - self.least - self.stride * first
        return first.clamp(max=self.left) * (self.right + 1) + rest.clamp(max=self.right)


@dataclass(frozen=True, kw_only=True)
class MapSize:
    """How a table becomes a map."""

    shape: list[_Whole]
    """Of the table."""
    stretches: list[Stretch | None]
    """How each dimension is stretched; None for one that stays as it is."""
    sizes_of: str | None = None
    """A module around the layer whose input tells the sizes; None for the layer itself."""

    def within(self, name: str) -> "MapSize":
        """The same for a model that holds the planned one as its module `name`."""
        return self if self.sizes_of is None else replace(self, sizes_of=f"{name}.{self.sizes_of}".rstrip("."))


def stretched(table: Tensor, stretches: Iterable[Stretch | None], shape: torch.Size) -> Tensor:
    """The map for an input of this shape; its memory may be that of the table."""
    whole = list(table.shape)
    for dim, stretch in enumerate(stretches):
        if stretch is not None:
            classes = stretch.classes(shape, table.device)
            whole[dim] = classes.shape[0]
            table = table if table.shape[dim] == 1 else table.index_select(dim, classes)
    return table.expand(whole)


class NoteShape:
    """Forward pre-hook: keeps the shape of the module's first argument, for constants inside of the module."""

    def __init__(self) -> None:
        self.shapes: list[torch.Size] = []

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.shapes.append(args[0].shape)


class ForgetShape:
    """Forward hook: what `note` kept is not valid any more."""

    def __init__(self, note: NoteShape) -> None:
        self.note = note

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.note.shapes.pop()


def note_shapes(module: nn.Module) -> NoteShape:
    """The note on `module`, put there if there is none."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, NoteShape):
            return hook
    note = NoteShape()
    module.register_forward_pre_hook(note, prepend=True)
    module.register_forward_hook(ForgetShape(note), always_call=True)
    return note


def noted_shape(note: NoteShape | None, input: Tensor) -> torch.Size:
    """The shape that decides about the size of a map."""
    if note is None:
        return input.shape
    if not note.shapes:
        raise SparsityError(
            "this layer became a constant, or adds one, whose size follows from the input of a module around it; "
            "call that module, or compact this one by itself"
        )
    return note.shapes[-1]


class ConstantMap(StandIn):
    """Replaces a module whose output is the same for every input of a size, and varies with the position.

    Args:
        shape: of the table.
        stretches: one per dimension; None for a dimension that is the same at every size.
        note: the shape that decides, if it is not that of the input.
        read_only: whether nobody writes to the output or holds it, so that it can be the same tensor every time.
    """

    table: Tensor

    def __init__(
        self,
        shape: list[int],
        stretches: list[Stretch | None],
        note: NoteShape | None = None,
        read_only: bool = False,
    ) -> None:
        super().__init__()
        self.stretches, self.note, self.read_only = list(stretches), note, read_only
        self.register_buffer("table", torch.zeros(shape))
        self._made = Remembered()

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # a constant does not depend on further arguments
        # not as an attribute, which would take longer than all the rest
        table, shape = cast(Tensor, self._buffers["table"]), noted_shape(self.note, input)

        def make() -> Tensor:
            return stretched(table.to(input.dtype) if input.is_floating_point() else table, self.stretches, shape)

        return self._made.whole(table, input, shape, make, self.read_only)

    def extra_repr(self) -> str:
        return f"{tuple(self.table.shape)}"
