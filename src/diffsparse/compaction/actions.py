"""What a plan can do to a module: one class per action, each of which applies, prints and reads itself."""

from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from diffsparse.compaction.adaptors import (
    EXPAND,
    FILL,
    SELECT,
    Constant,
    ConstantMap,
    ExpandOutput,
    PassOn,
    SelectInput,
)
from diffsparse.compaction.ragged import RaggedConv
from diffsparse.compaction.tensor_slice import Count, Indices, index_tensor
from diffsparse.errors import SparsityError
from diffsparse.module_tree import modules_by_name
from diffsparse.plain import from_plain, to_plain

Widths: TypeAlias = tuple[Count, Count]
"""Channels before and after."""


class ModelEdit:
    """A model while a plan is applied to it: modules by name, to be changed, replaced or removed."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = modules_by_name(model)
        self._indices: dict[tuple[int, torch.device], Tensor] = {}

    def index(self, chosen: list[int], device: torch.device) -> Tensor:
        """These indices as a tensor; one tensor per list and device, as the tensors of a layer are cut alike."""
        key = id(chosen), device
        if key not in self._indices:
            self._indices[key] = index_tensor(chosen, device)
        return self._indices[key]

    def remove(self, name: str) -> None:
        """Take a module out of the tree."""
        owner, _, key = name.rpartition(".")
        # not `del parent[i]`, which would rename the layers behind it
        del self.modules[owner]._modules[key]

    def replace(self, name: str, new: nn.Module) -> None:
        """Put `new` in the place of a module."""
        owner, _, key = name.rpartition(".")
        parent = self.modules[owner]
        parent._modules[key] = self.modules[name] = new.train(parent.training)

    def replace_by_constant(self, name: str, new: nn.Module) -> None:
        """Put `new` in the place of a module, with its device and dtype."""
        like = _sample_tensor(self.modules[name])
        self.replace(name, new.to(device=like.device, dtype=like.dtype))


@dataclass(frozen=True, kw_only=True)
class Action:
    """What happens to one module."""

    tag: ClassVar[str]
    """What JSON and the printed plan call it."""
    drops_module: ClassVar[bool] = False
    """Whether the module leaves the tree, with all that lies in it."""
    needs_size: ClassVar[bool] = False
    """Whether the compact model is then valid for the size of the example only."""
    for_inference: ClassVar[bool] = False
    """Whether the compact model is then meant for inference, not for training."""

    def apply(self, edit: ModelEdit, name: str) -> None:
        """Do it to the module `name`, whose tensors are sliced already."""
        raise NotImplementedError

    def to_plain(self) -> dict[str, Any]:
        """The action as plain data, with its tag."""
        return {"action": self.tag, **to_plain(self)}

    @staticmethod
    def from_plain(value: Any, where: str) -> "Action":
        """The action that gave this data; raises with what is wrong and `where` if none did."""
        entry = from_plain(dict[str, object], value, where)
        tag = entry.pop("action", None)
        if not isinstance(tag, str) or tag not in ACTIONS:
            raise SparsityError(f"'action' of {where} must be one of {', '.join(ACTIONS)}, got {tag!r:.50}")
        return from_plain(ACTIONS[tag], entry, where)

    def __str__(self) -> str:
        return self.tag


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
        edit.replace_by_constant(name, Constant(self.outputs[1], self.dim, self.window, self.transposed))

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
        edit.replace_by_constant(name, ConstantMap(self.shape, self.input_size))

    def __str__(self) -> str:
        size = [n for n in self.input_size if n is not None]
        return f"out {self.outputs[0]} -> {self.outputs[1]}, {self.tag}, valid for input size {size} only"


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
        if self.groups is not None:
            edit.modules[name].groups = self.groups  # type: ignore[assignment]
        self._adapt(edit, edit.modules[name], edit.modules[name])

    def _adapt(self, edit: ModelEdit, module: nn.Module, old: nn.Module) -> None:
        """Put select, expand and bias on `module`, with the device and dtype of `old`."""
        if not self.adds_bias and self.select is None and self.expand is None:
            return
        like = _sample_tensor(old)
        if self.adds_bias:
            trained = any(parameter.requires_grad for parameter in module.parameters())
            module.bias = nn.Parameter(like.new_zeros(self.outputs[1]), requires_grad=trained)
        if self.select is not None:
            module.register_buffer(SELECT, edit.index(self.select, like.device), persistent=False)
            module.register_forward_pre_hook(SelectInput(self.dim), prepend=True)
        if self.expand is not None:
            module.register_buffer(EXPAND, edit.index(self.expand, like.device), persistent=False)
            module.register_buffer(FILL, like.new_zeros(self.width))
            module.register_forward_hook(ExpandOutput(self.dim))

    def __str__(self) -> str:
        parts = [] if self.inputs is None else [f"in {self.inputs[0]} -> {self.inputs[1]}"]
        parts += [f"out {self.outputs[0]} -> {self.outputs[1]}", *([self.tag] if type(self) is not Slice else [])]
        parts += ["select"] if self.select is not None else []
        parts += [f"expand to {self.width}"] if self.expand is not None else []
        return ", ".join(parts + (["new bias"] if self.adds_bias else []))


@dataclass(frozen=True, kw_only=True)
class RaggedSlice(Slice):
    """A grouped convolution whose groups keep different sizes: it becomes a `RaggedConv`."""

    tag: ClassVar = "ragged"

    blocks: list[Widths]
    """Outputs and inputs of each group."""

    def apply(self, edit: ModelEdit, name: str) -> None:
        edit.replace(name, RaggedConv(edit.modules[name], self.blocks))
        super().apply(edit, name)


@dataclass(frozen=True, kw_only=True)
class Fold(Slice):
    """The layer in front takes over the scale and shift of a batch norm; an expand may stay behind it."""

    tag: ClassVar = "folded"
    for_inference: ClassVar = True

    def apply(self, edit: ModelEdit, name: str) -> None:
        old = edit.modules[name]
        edit.replace(name, nn.Identity())
        self._adapt(edit, edit.modules[name], old)

    def __str__(self) -> str:
        return super().__str__() if self.outputs[0] != self.outputs[1] else self.tag


ACTIONS: dict[str, type[Action]] = {
    kind.tag: kind for kind in (Slice, RaggedSlice, EmitConstant, EmitMap, Fold, PassThrough, Remove)
}
"""Actions by their tags."""


def _sample_tensor(module: nn.Module) -> Tensor:
    """A tensor of the module that shows its device and dtype."""
    own = (module._parameters.values(), module._buffers.values())
    for tensor in chain(*own, module.parameters(), module.buffers()):
        if tensor is not None and tensor.is_floating_point():
            return tensor
    return torch.empty(0)
