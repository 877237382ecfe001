"""What the phases of a run share, and what each is."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffsparse.data.dataset import DataSet
from diffsparse.methods import Method
from diffsparse.training.config import Recipe
from diffsparse.training.folder import RunFolder
from diffsparse.training.interrupt import Interrupt
from diffsparse.training.log import Log
from diffsparse.training.processes import Processes
from diffsparse.training.task import Objective
from diffsparse.training.watcher import Watcher


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What all phases of a run share."""

    recipe: Recipe
    data: DataSet
    processes: Processes
    folder: RunFolder
    log: Log
    watcher: Watcher
    interrupt: Interrupt

    def placed(self, inputs: Tensor) -> Tensor:
        """`inputs` on the device of this process, images in the memory format asked for."""
        inputs = inputs.to(self.processes.device, non_blocking=True)
        if self.recipe.hardware.channels_last and inputs.dim() == 4:
            inputs = inputs.to(memory_format=torch.channels_last)
        return inputs

    def example(self) -> Tensor:
        """One input of the right shape, to count and compact with."""
        return torch.zeros(1, *self.data.input_shape, device=self.processes.device)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One training from start to end."""

    name: str
    """Such as "train"."""
    number: int
    """Its place in the run."""
    model: nn.Module
    """What is trained, on its device."""
    method: Method
    """What pushes towards sparsity."""
    objective: Objective
    """What is minimised."""
    epochs: int
