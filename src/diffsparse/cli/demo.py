"""`diffsparse demo`: plain and gated training of a small residual net on digits, side by side."""

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import diffsparse
from diffsparse.cli.progress import Report
from diffsparse.data import Split, load_digits
from diffsparse.errors import SparsityError, require_number, require_whole
from diffsparse.models import PreResNet
from diffsparse.penalties import Penalty
from diffsparse.sparsify import Sparsity, parameter_groups, sparsify, sparsity


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Train a small residual net on digits, plain and gated, and compare."""

    epochs: int = 30
    """Passes over the 1,348 training images, for each of the two nets."""
    strength: float = 0.01
    """Lambda of the l1 penalty on the gates. A short run needs a far larger one than a long run."""
    learning_rate: float = 0.1
    """Peak learning rate of SGD with momentum; it falls to zero along a cosine."""
    batch_size: int = 64
    """Images a step."""
    depth: int = 14
    """Depth of the pre-activation ResNet, 6n + 2."""
    width: int = 16
    """Channels of its first stage."""
    seed: int = 0
    """Seed of the split, the weights and the order of images."""
    output: Path | None = None
    """Where to write the results as JSON."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One trained net."""

    accuracy: float
    """Share of test images it names correctly."""
    seconds: float
    """Training time."""
    sparsity: Sparsity | None
    """Zeros of its gates; None for the plain net."""


def run_demo(config: Demo) -> None:
    """Train both nets, print how far they are and then the table, write the JSON."""
    _check(config)
    console = Console()
    data = load_digits(seed=config.seed)
    nets = {"plain": _build(config, gated=False), "gated": _build(config, gated=True)}
    outcomes: dict[str, Outcome] = {}
    with _one_thread(), Report(console, config.epochs) as report:
        for kind, (model, penalty) in nets.items():
            report.begin(kind)
            outcomes[kind] = _train(config, data, model, penalty, report)
        record = _record(config, outcomes)
    console.print(_table(outcomes))
    if config.output is not None:
        _write(record, config.output)
        console.print(f"results in {config.output}")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from several threads, and lose much to them on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _check(config: Demo) -> None:
    require_whole("epochs", config.epochs, low=1)
    require_whole("width", config.width, low=1)
    # more would leave no whole batch of this small data set
    require_whole("batch_size", config.batch_size, low=1, high=1024)
    require_whole("seed", config.seed, low=0, high=2**63 - 1)
    require_number("learning_rate", config.learning_rate, above=0)
    if config.output is not None:
        _check_writable(config.output.absolute())


def _check_writable(path: Path) -> None:
    if not path.parent.is_dir():
        raise SparsityError(f"the folder of --output does not exist: {path.parent}")
    if path.is_dir():
        raise SparsityError(f"--output must be a file, got the folder {path}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise SparsityError(f"--output cannot be written: {path}")


def _build(config: Demo, gated: bool) -> tuple[nn.Module, Penalty | None]:
    torch.manual_seed(config.seed)
    model = PreResNet(config.depth, width=config.width, in_channels=1)
    if not gated:
        return model, None
    model = sparsify(model, start=0.5)
    return model, Penalty(model, strength=config.strength)


def _train(config: Demo, data: Split, model: nn.Module, penalty: Penalty | None, report: Report) -> Outcome:
    torch.manual_seed(config.seed)
    optimizer = torch.optim.SGD(parameter_groups(model), lr=config.learning_rate, momentum=0.9, nesterov=True)
    batches = len(data.train_images) // config.batch_size
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.epochs * batches)
    began = time.perf_counter()
    for _ in range(config.epochs):
        model.train()
        # whole batches only: a handful of left-over images would make poor batch statistics
        for index in torch.randperm(len(data.train_images))[: batches * config.batch_size].view(batches, -1):
            loss = F.cross_entropy(model(data.train_images[index]), data.train_labels[index])
            if penalty is not None:
                loss = loss + penalty()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        note = f"loss {loss.item():.3f}" + ("" if penalty is None else f", zero channels {sparsity(model).channels}")
        report.epoch_done(note)
    seconds = time.perf_counter() - began
    accuracy = _accuracy(model, data.test_images, data.test_labels)
    return Outcome(accuracy=accuracy, seconds=seconds, sparsity=None if penalty is None else sparsity(model))


@torch.no_grad()
def _accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    return float((model(images).argmax(1) == labels).float().mean())


def _table(outcomes: dict[str, Outcome]) -> Table:
    table = Table(title="Digits: plain and gated training")
    table.add_column("net")
    for heading in ("test accuracy", "zero channels", "dead layers", "seconds"):
        table.add_column(heading, justify="right")
    for kind, outcome in outcomes.items():
        zeros = (
            ("-", "-") if outcome.sparsity is None else (str(outcome.sparsity.channels), str(outcome.sparsity.layers))
        )
        table.add_row(kind, f"{outcome.accuracy:.2%}", *zeros, f"{outcome.seconds:.1f}")
    return table


def _record(config: Demo, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    return {
        "command": "diffsparse demo",
        "config": {key: value for key, value in asdict(config).items() if key != "output"},
        "versions": {
            "diffsparse": diffsparse.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "threads": torch.get_num_threads(),
        "results": {
            kind: {
                "accuracy": outcome.accuracy,
                "seconds": outcome.seconds,
                "sparsity": None if outcome.sparsity is None else outcome.sparsity.as_dict(),
            }
            for kind, outcome in outcomes.items()
        },
    }


def _write(record: dict[str, Any], path: Path) -> None:
    try:
        path.write_text(json.dumps(record, indent=2) + "\n")
    except OSError as error:
        raise SparsityError(f"--output cannot be written: {error}") from error
