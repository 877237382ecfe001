"""The base of all actions, and the model that they are applied to."""

from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from diffsparse.compaction.adaptors import EXPAND, FILL, ExpandOutput
from diffsparse.compaction.tensor_slice import Count, index_tensor
from diffsparse.module_tree import modules_by_name

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
        """Put `new` in the place of a module, on its device and in its dtype unless it has tensors of its own."""
        owner, _, key = name.rpartition(".")
        parent = self.modules[owner]
        parent._modules[key] = self.modules[name] = new.train(parent.training)

    def expand(self, module: nn.Module, expand: list[int], width: int, dim: int, like: Tensor) -> None:
        """Let `module` put channels that it does not compute back between those that it does."""
        module.register_buffer(EXPAND, self.index(expand, like.device), persistent=False)
        module.register_buffer(FILL, like.new_zeros(width))
        module.register_forward_hook(ExpandOutput(dim))


@dataclass(frozen=True, kw_only=True)
class Action:
    """What happens to one module."""

    tag: ClassVar[str]
    """What JSON and the printed plan call it."""
    drops_module: ClassVar[bool] = False
    """Whether the module leaves the tree, and all that lies in it."""
    needs_size: ClassVar[bool] = False
    """Whether the compact model is then valid for the size of the example only."""
    for_inference: ClassVar[bool] = False
    """Whether the compact model is then meant for inference, not for training."""

    def apply(self, edit: ModelEdit, name: str) -> None:
        """Do it to the module `name`, whose tensors are sliced already."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.tag


def sample_tensor(module: nn.Module) -> Tensor:
    """A tensor of the module that shows its device and dtype."""
    own = (module._parameters.values(), module._buffers.values())
    for tensor in chain(*own, module.parameters(), module.buffers()):
        if tensor is not None and tensor.is_floating_point():
            return tensor
    return torch.empty(0)
