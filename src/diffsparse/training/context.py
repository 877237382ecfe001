"""What the phases of a run share, what each phase is, and who is told how it goes."""

import signal
import threading
from dataclasses import dataclass
from functools import cached_property
from types import FrameType
from typing import Any, Self

import torch
from torch import Tensor, nn

from diffsparse.data.dataset import DataSet
from diffsparse.errors import SparsityError
from diffsparse.methods import Method, Sparsifying
from diffsparse.penalties.strength import Pace
from diffsparse.training.config import Recipe
from diffsparse.training.folder import Log, RunFolder
from diffsparse.training.optimizer import gate_pace
from diffsparse.training.processes import Processes
from diffsparse.training.task import Objective

SAMPLES = 32
"""Training inputs that gates are placed by."""


class Watcher:
    """Told of every step and epoch; this one keeps silent, the command line's draws a bar."""

    def phase_began(self, name: str, *, epochs: int, steps: int, done: int, unit: str) -> None:
        """A phase of `epochs` epochs begins, or goes on after `done` steps; `unit` says what inputs are, in plural."""

    def step_done(self, loss: Tensor, inputs: int) -> None:
        """A step with so many inputs is over; reading its `loss`, a scalar, may have to wait for the device."""

    def epoch_done(self, record: dict[str, Any]) -> None:
        """An epoch is over; `record` is its line of the log."""

    def phase_over(self) -> None:
        """A phase is over."""

    def say(self, text: str) -> None:
        """Something to tell the user."""


class Interrupt:
    """While it is entered, SIGINT and SIGTERM only set `signal`; a second SIGINT is the usual KeyboardInterrupt."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    def __enter__(self) -> Self:
        # only the main thread may set handlers; elsewhere signals keep their meaning
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


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

    def lay_out(self, model: nn.Module) -> nn.Module:
        """`model`, changed in place, on the device of this process and in the memory format asked for."""
        model = model.to(self.processes.device)
        if self.recipe.hardware.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def synchronised(self, model: nn.Module, *, shrinks: bool = False) -> nn.Module:
        """`model`, changed in place, with batch norms that see the batch of all processes if that is asked for.

        Raises on the CPU, where only batch norms with gates can do that: `shrinks` tells whether these will go.
        """
        if not self.recipe.hardware.sync_batchnorm or self.processes.world == 1:
            return model
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        ordinary = shrinks or any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())
        if ordinary and self.processes.device.type == "cpu":
            raise SparsityError("sync_batchnorm of batch norms without gates needs GPUs; this runs on the CPU")
        return model

    @property
    def steps(self) -> int:
        """Steps per epoch."""
        return len(self.data.train) // self.recipe.batch_size

    @cached_property
    def pace(self) -> Pace:
        """How far the run can move gates."""
        return gate_pace(self.recipe.optimisation, self.recipe.epochs, self.steps)

    def example(self) -> Tensor:
        """One input of the right shape, to count and compact with."""
        return self.data.example(1).to(self.processes.device)

    def sample(self) -> Tensor:
        """A few training inputs, to place gates by."""
        return self.placed(self.data.sample(SAMPLES))


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One training from start to end."""

    name: str
    number: int
    """Its place in the run."""
    model: nn.Module
    method: Method
    sparsifying: Sparsifying
    """The options of the method, with a number for lambda."""
    objective: Objective
    epochs: int
