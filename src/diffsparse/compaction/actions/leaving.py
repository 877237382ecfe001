"""Actions after which the module is no longer in the tree: nothing, its input or a constant stands for it."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from diffsparse.compaction.actions.action import Action, ModelEdit, Widths, sample_tensor
from diffsparse.compaction.adaptors import Constant, ConstantMap, PassOn
from diffsparse.compaction.tensor_slice import Count, Indices


@dataclass(frozen=True, kw_only=True)
class Remove(Action):
    """The module goes, and its container does without it."""

    tag: ClassVar = "removed"
    drops_module: ClassVar = True

    def apply(self, edit: ModelEdit, name: str) -> None:
        edit.remove(name)


@dataclass(frozen=True, kw_only=True)
class PassThrough(Action):
    """The module gives its input back."""

    tag: ClassVar = "identity"
    drops_module: ClassVar = True

    def apply(self, edit: ModelEdit, name: str) -> None:
        edit.replace(name, PassOn())


@dataclass(frozen=True, kw_only=True)
class EmitConstant(Action):
    """The layer emits one number per channel, at any input size."""

    tag: ClassVar = "constant"
    drops_module: ClassVar = True

    outputs: Widths
    """Output channels before and after."""
    dim: int
    """Where channels lie, counted from the end."""
    window: list[list[Count]] | None = None
    """How the layer changed spatial sizes; None if it did not."""
    transposed: bool = False
    """Whether it was a transposed convolution."""

    def apply(self, edit: ModelEdit, name: str) -> None:
        new = Constant(self.outputs[1], self.dim, self.window, self.transposed)
        edit.replace(name, _like(edit.modules[name], new))

    def __str__(self) -> str:
        return f"out {self.outputs[0]} -> {self.outputs[1]}, {self.tag}"


@dataclass(frozen=True, kw_only=True)
class EmitMap(Action):
    """The module emits one map, which holds for one input size."""

    tag: ClassVar = "map"
    drops_module: ClassVar = True
    needs_size: ClassVar = True

    outputs: Widths
    """Output channels before and after."""
    shape: list[Count]
    """Shape of the map without the batch."""
    input_size: list[Count | None]
    """The input size it is valid for, without the batch; None for any number of channels."""

    def apply(self, edit: ModelEdit, name: str) -> None:
        edit.replace(name, _like(edit.modules[name], ConstantMap(self.shape, self.input_size)))

    def __str__(self) -> str:
        size = [n for n in self.input_size if n is not None]
        return f"out {self.outputs[0]} -> {self.outputs[1]}, {self.tag}, valid for input size {size} only"


@dataclass(frozen=True, kw_only=True)
class Fold(Action):
    """The layer in front takes over the scale and shift of a batch norm."""

    tag: ClassVar = "folded"
    for_inference: ClassVar = True

    outputs: Widths | None = None
    """Output channels before and after, if they differ."""
    expand: Indices | None = None
    """Positions of its channels, where what follows is wider than the batch norm was."""
    width: Count = 0
    """Channels of the output as others see it."""
    dim: int = 1
    """Where channels lie, counted from the end if negative."""

    def apply(self, edit: ModelEdit, name: str) -> None:
        identity = nn.Identity()
        if self.expand is not None:
            edit.expand(identity, self.expand, self.width, self.dim, sample_tensor(edit.modules[name]))
        edit.replace(name, identity)

    def __str__(self) -> str:
        widths = [] if self.outputs is None else [f"out {self.outputs[0]} -> {self.outputs[1]}"]
        return ", ".join([*widths, self.tag, *([] if self.expand is None else [f"expand to {self.width}"])])


def _like(old: nn.Module, new: nn.Module) -> nn.Module:
    """`new` with the device and dtype of `old`."""
    like = sample_tensor(old)
    return new.to(device=like.device, dtype=like.dtype)
