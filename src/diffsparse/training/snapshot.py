"""The state of a run on disk: everything needed to go on as if nothing had happened, without pickle."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diffsparse.averaging import MovingAverage
from diffsparse.checkpoint.container import HASH, mapped_tensors, read_checked, write_tensors
from diffsparse.errors import CheckpointError
from diffsparse.files import replacing

FORMAT_NAME = "diffsparse-training"
FORMAT_VERSION = 2


@dataclass
class Progress:
    """Where a run is. Everything random follows from it and the seed, so no random state has to be kept."""

    epoch: int = 0
    """Epochs that are done."""
    step: int = 0
    """Steps done in the current epoch."""
    sums: list[float] = field(default_factory=list)
    """Training figures of the current epoch, added up."""
    seconds: float = 0.0
    """Time spent training."""
    first_loss: float | None = None
    """Loss at the start, to compare with: one that explodes is far larger."""
    controller: dict[str, Any] = field(default_factory=dict)
    regulariser: dict[str, Any] = field(default_factory=dict)
    shrunk: list[float] = field(default_factory=list)
    """When the network became small in the current epoch, counted in epochs."""
    best: float | None = None
    """Best validation figure so far."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a snapshot is taken of."""

    model: nn.Module
    optimizer: Optimizer
    scaler: torch.amp.GradScaler
    average: MovingAverage[nn.Module] | None


def write_snapshot(path: Path, trained: Trained, progress: Progress, phase: str) -> None:
    """Write in one step; raises CheckpointError and leaves what was there if that fails."""
    tensors: dict[str, Tensor] = {f"model/{name}": value for name, value in trained.model.state_dict().items()}
    if trained.average is not None:
        tensors |= {f"average/{name}": value for name, value in trained.average.state_dict().items()}
    numbers: dict[str, Any] = {}
    for index, state in trained.optimizer.state_dict()["state"].items():
        for key, value in state.items():
            name = f"optimizer/{index}/{key}"
            (tensors if isinstance(value, Tensor) else numbers)[name] = value
    scaler = trained.scaler.state_dict()
    state = {"phase": phase, "progress": vars(progress), "optimizer": numbers, "scaler": scaler}
    metadata = {"format": FORMAT_NAME, "format_version": str(FORMAT_VERSION), "state": json.dumps(state)}
    with replacing(path) as file:
        write_tensors(file, {name: value.detach() for name, value in tensors.items()}, metadata)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A snapshot that was read and checked."""

    path: Path
    phase: str
    progress: Progress
    tensors: dict[str, Tensor]
    """Of model, average and optimiser."""
    numbers: dict[str, Any]
    """Of the optimiser, where it has numbers."""
    scaler: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> "Snapshot":
        """The snapshot at `path`; raises CheckpointError if it is damaged."""
        metadata, entries = read_checked(os.fspath(path), FORMAT_NAME, FORMAT_VERSION)
        try:
            state = json.loads(metadata["state"])
            progress = Progress(**state["progress"])
            phase, numbers, scaler = str(state["phase"]), dict(state["optimizer"]), dict(state["scaler"])
        except (ValueError, TypeError, LookupError) as error:
            raise CheckpointError(f"the header of '{path}' cannot be understood: {error}") from error
        tensors = mapped_tensors(path, entries, metadata[HASH])
        return cls(path=path, phase=phase, progress=progress, tensors=tensors, numbers=numbers, scaler=scaler)

    def restore(self, trained: Trained) -> None:
        """Put the state into a model and an optimiser that were just made by the same recipe."""
        try:
            trained.model.load_state_dict(self._part("model/"))
            if trained.average is not None:
                trained.average.load_state_dict(self._part("average/"))
            state: dict[int, dict[str, Any]] = {}
            parameters = [p for group in trained.optimizer.param_groups for p in group["params"]]
            for name, value in {**self._part("optimizer/"), **self.numbers}.items():
                index, key = name.removeprefix("optimizer/").split("/")
                state.setdefault(int(index), {})[key] = _own(value, parameters[int(index)])
            groups = trained.optimizer.state_dict()["param_groups"]
            trained.optimizer.load_state_dict({"state": state, "param_groups": groups})
            trained.scaler.load_state_dict(self.scaler)
        except (RuntimeError, ValueError, LookupError) as error:
            what = " ".join(str(error).split("\n\t")[:2])
            raise CheckpointError(f"'{self.path}' does not fit this run: {what}") from error

    def _part(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}


def _own(value: Any, parameter: Tensor) -> Any:
    """A copy that the optimiser may write to, in the memory layout of its parameter, which affects rounding."""
    if not isinstance(value, Tensor):
        return value
    layout = parameter.detach() if value.shape == parameter.shape else value
    return torch.empty_like(layout, dtype=value.dtype, device=value.device).copy_(value)
