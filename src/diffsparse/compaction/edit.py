"""A model while a plan is applied to it."""

from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from diffsparse.compaction.stand_in import become
from diffsparse.module_tree import modules_by_name


def index_tensor(chosen: list[int], device: torch.device) -> Tensor:
    return torch.from_numpy(np.array(chosen, np.int64)).to(device)


class ModelEdit:
    """A model while a plan is applied to it: its modules by name, to be changed or replaced."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = modules_by_name(model)
        self._indices: dict[tuple[int, torch.device], Tensor] = {}

    def index(self, chosen: list[int], device: torch.device) -> Tensor:
        """These indices as a tensor; one tensor per list and device, because the tensors of a layer are cut alike."""
        key = id(chosen), device
        if key not in self._indices:
            self._indices[key] = index_tensor(chosen, device)
        return self._indices[key]

    def sample(self, name: str) -> Tensor:
        """A tensor of the module `name` that shows its device and dtype."""
        module = self.modules[name]
        own = (module._parameters.values(), module._buffers.values())
        tensors = chain(*own, module.parameters(), module.buffers())
        return next((t for t in tensors if t is not None and t.is_floating_point()), torch.empty(0))

    def replace(self, name: str, new: nn.Module) -> None:
        """The module `name` becomes `new`; it stays the same object."""
        parent = self.modules[name.rpartition(".")[0]]
        become(self.modules[name], new.train(parent.training))
