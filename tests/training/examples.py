"""Small data, a small net and runs of a second for the tests of training."""

import dataclasses
import importlib
import json
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.data import DataSet
from diffsparse.data.tensor_part import Normalisation, TensorPart
from diffsparse.methods import Method, Sparsifying
from diffsparse.training import Recipe, StoppedError, Watcher, train
from diffsparse.training.classification import ClassificationObjective
from diffsparse.training.context import Interrupt, Phase, RunContext
from diffsparse.training.folder import Log, RunFolder
from diffsparse.training.loop import Trainer
from diffsparse.training.processes import Processes
from diffsparse.training.snapshot import Snapshot

# by import_module: the package has a function of the same name
RUN_MODULE = importlib.import_module("diffsparse.training.run")
CLASSES = 4
NET = f"{__name__}:Net"
STEPS = 6
"""Steps an epoch of `recipe()` on `small_data()`."""


class Net(nn.Module):
    """Two convolutions with batch norm, and dropout, whose random numbers a resumed run must repeat."""

    def __init__(self, width: int = 6, dropout: float = 0.2) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, width, 3), nn.BatchNorm2d(width)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        logits: Tensor = self.head(self.dropout(x.mean((2, 3))))
        return logits


class Smooth(nn.Module):
    """No batch norm: a batch in pieces is the same as the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


def small_data(train: int = 96, test: int = 40, validation: int = 0) -> DataSet:
    """Images of 6 x 6, a pattern for each class in noise."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(CLASSES, 1, 6, 6, generator=generator)

    def part(count: int) -> TensorPart:
        labels = torch.randint(CLASSES, (count,), generator=generator)
        images = patterns[labels] + 0.7 * torch.randn(count, 1, 6, 6, generator=generator)
        return TensorPart(images=images, labels=labels, normalisation=Normalisation(mean=(0.0,), std=(1.0,)))

    return DataSet(
        name="small",
        train=part(train),
        test=part(test),
        validation=part(validation) if validation else None,
        input_shape=(1, 6, 6),
        num_outputs=CLASSES,
    )


def recipe(**changes: Any) -> Recipe:
    """Three epochs of six steps on the small net, with the paper's loss and changes."""
    usual = Recipe(model=NET, epochs=3, batch_size=16, sparsifying=Sparsifying(strength=1e-3))
    return dataclasses.replace(usual, **changes)


ALONE = Processes(device=torch.device("cpu"))


def run_context(
    folder: Path, its_recipe: Recipe, data: DataSet | None = None, processes: Processes = ALONE
) -> RunContext:
    """What a `Trainer` needs."""
    path = RunFolder(folder)
    path.begin(its_recipe, resume=False, needed=0)
    return RunContext(
        recipe=its_recipe,
        data=small_data() if data is None else data,
        processes=processes,
        folder=path,
        log=Log(path=path.log),
        watcher=Watcher(),
        interrupt=Interrupt(),
    )


def trainer(
    folder: Path,
    model: nn.Module,
    method: Method,
    its_recipe: Recipe,
    data: DataSet | None = None,
    processes: Processes = ALONE,
) -> Trainer:
    """A trainer of one phase, ready to run."""
    phase = Phase(
        name="train",
        number=1,
        model=model,
        method=method,
        sparsifying=its_recipe.sparsifying,
        objective=ClassificationObjective(),
        epochs=its_recipe.epochs,
    )
    return Trainer(phase, run_context(folder, its_recipe, data, processes))


class Signals(Watcher):
    """Sends this process a signal when the given phase has done so many steps."""

    def __init__(self, steps: int, number: int = signal.SIGTERM, phase: str = "train") -> None:
        self.left, self.number, self.phase, self.now = steps, number, phase, ""

    def phase_began(self, name: str, *, epochs: int, steps: int, done: int, unit: str) -> None:
        self.now = name
        if name == self.phase:
            self.left -= done

    def step_done(self, *_: object) -> None:
        if self.now == self.phase:
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(self.number)


def run_stopped(its_recipe: Recipe, folder: Path, *stops: Signals) -> dict[str, Any]:
    """Run, be stopped by each of the signals in turn, resume to the end."""
    for index, stop in enumerate(stops):
        try:
            train(its_recipe, folder, resume=index > 0, watcher=stop)
        except StoppedError:
            continue
        raise AssertionError(f"the run was not stopped by {stop.number}")
    return train(its_recipe, folder, resume=bool(stops))


def outcome(folder: Path) -> dict[str, Any]:
    """All that two runs must have in common to count as the same: files, last checkpoint, log, without times."""
    run_folder = RunFolder(folder)
    newest = Snapshot.read(run_folder.snapshots()[0])
    result = json.loads(run_folder.result.read_text())
    timed = ("seconds", "training_seconds", "latency")
    return {
        "files": {path.name: path.read_bytes() for path in folder.glob("*.safetensors")},
        "checkpoint": newest.path.name,
        "state": {name: (tensor.shape, tensor.numpy().tobytes()) for name, tensor in newest.tensors.items()},
        "progress": {**vars(newest.progress), "seconds": None},
        "log": [{**record, "seconds": None} for record in Log(path=run_folder.log).records()],
        "result": {key: value for key, value in result.items() if key not in timed},
    }
