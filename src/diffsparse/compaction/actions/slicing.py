"""Layers that stay, with fewer channels."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from diffsparse.compaction.actions.action import Action, ModelEdit, Widths, sample_tensor
from diffsparse.compaction.adaptors import SELECT, SelectInput
from diffsparse.compaction.ragged import RaggedConv
from diffsparse.compaction.tensor_slice import Count, Indices


@dataclass(frozen=True, kw_only=True)
class Slice(Action):
    """The layer loses inputs and outputs; a select in front and an expand behind it fit it to its surroundings."""

    tag: ClassVar = "sliced"

    outputs: Widths
    """Output channels before and after."""
    inputs: Widths | None = None
    """Input channels before and after, for a layer that mixes them."""
    select: Indices | None = None
    """Positions to take from the input, where it is wider than the layer."""
    expand: Indices | None = None
    """Positions of the layer's outputs, where what follows is wider than the layer."""
    width: Count = 0
    """Channels of the output as others see it."""
    dim: int = 1
    """Where channels lie, counted from the end if negative."""
    adds_bias: bool = False
    """Whether the layer gets a bias that it did not have."""
    groups: Count | None = None
    """Groups after, for a grouped convolution."""

    def apply(self, edit: ModelEdit, name: str) -> None:
        module = edit.modules[name]
        if self.groups is not None:
            module.groups = self.groups  # type: ignore[assignment]
        if not self.adds_bias and self.select is None and self.expand is None:
            return
        like = sample_tensor(module)
        if self.adds_bias:
            trained = any(parameter.requires_grad for parameter in module.parameters())
            module.bias = nn.Parameter(like.new_zeros(self.outputs[1]), requires_grad=trained)
        if self.select is not None:
            module.register_buffer(SELECT, edit.index(self.select, like.device), persistent=False)
            module.register_forward_pre_hook(SelectInput(self.dim), prepend=True)
        if self.expand is not None:
            edit.expand(module, self.expand, self.width, self.dim, like)

    def __str__(self) -> str:
        parts = [] if self.inputs is None else [f"in {self.inputs[0]} -> {self.inputs[1]}"]
        parts += [f"out {self.outputs[0]} -> {self.outputs[1]}", *self._kind]
        parts += ["select"] if self.select is not None else []
        parts += [f"expand to {self.width}"] if self.expand is not None else []
        return ", ".join(parts + (["new bias"] if self.adds_bias else []))

    @property
    def _kind(self) -> list[str]:
        return []


@dataclass(frozen=True, kw_only=True)
class RaggedSlice(Slice):
    """A grouped convolution whose groups keep different sizes: it becomes a `RaggedConv`."""

    tag: ClassVar = "ragged"

    blocks: list[Widths]
    """Outputs and inputs of each group."""

    def apply(self, edit: ModelEdit, name: str) -> None:
        edit.replace(name, RaggedConv(edit.modules[name], self.blocks))
        super().apply(edit, name)

    @property
    def _kind(self) -> list[str]:
        return [self.tag]
