"""`diffsparse train`: from a configuration to a compact network; progress as a bar, or as one line per epoch."""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import Tensor

from diffsparse.cli.load import load_warning
from diffsparse.cli.tables import results_table, wide_console
from diffsparse.training import Recipe, StoppedError, Watcher, read_recipe, train
from diffsparse.training.processes import own_rank

LIVE_SECONDS = 0.5
"""Time between two looks at the loss of a step."""
WIDE_BAR = 120
"""Characters per line from which on the bar shows all figures of an epoch."""


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a network with gates or by another method, make it compact and save it."""

    recipe: Annotated[Recipe, tyro.conf.OmitArgPrefixes] = field(default_factory=Recipe)
    """The run."""
    config: Path | None = None
    """A TOML file with the configuration; flags win over it."""
    output: Path | None = None
    """Folder of the run; by default runs/MODEL-DATA-METHOD-SEED."""
    resume: bool = False
    """Go on from the newest checkpoint in the folder of the run, with the same configuration."""
    tensorboard: bool = False
    """Write for TensorBoard too."""

    @property
    def folder(self) -> Path:
        """Where the run writes."""
        recipe = self.recipe
        model = recipe.model.replace(":", ".").replace("/", "-")
        name = f"{model}-{recipe.data}-{recipe.sparsifying.method}-{recipe.seed}"
        return Path("runs", name) if self.output is None else self.output

    def run(self) -> None:
        """Train and print the table."""
        console, folder = wide_console(), self.folder
        try:
            # the bar ends first, with a line of its own, whatever happens
            with TrainingBar(console) as bar:
                result = train(self.recipe, folder, resume=self.resume, tensorboard=self.tensorboard, watcher=bar)
        except StoppedError as stopped:
            words = f"stopped by {stopped.signal.name}; the same command with --resume goes on from '{folder}'"
            Console(stderr=True).print(f"diffsparse: {words}", markup=False, highlight=False, soft_wrap=True)
            # as a shell reports a program that a signal ended
            sys.exit(128 + stopped.signal)
        # of several processes only the first prints
        if own_rank() == 0:
            console.print(results_table({folder.name: result}))
            if busy := load_warning():
                console.print(busy, soft_wrap=True, highlight=False)
            console.print(f"files in {folder}", markup=False, soft_wrap=True)


def train_defaults(args: Sequence[str]) -> Train:
    """The settings that flags change: those of the file that --config names, or of the run to resume."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", nargs="?")
    parser.add_argument("--output", nargs="?", type=Path)
    parser.add_argument("--resume", action="store_true")
    given, _ = parser.parse_known_args(args)
    if given.config is None and given.output and given.resume and (given.output / "config.toml").exists():
        given.config = given.output / "config.toml"
    return Train() if given.config is None else Train(recipe=read_recipe(given.config))


class TrainingBar(Watcher):
    """Shows steps and epochs on `console`; a phase called "train" goes by the `title`, if one is set."""

    def __init__(self, console: Console) -> None:
        self.console, self.title = console, ""
        self.bar = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(bar_width=12),
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            TextColumn("{task.fields[live]}"),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = TaskID(0)

    def phase_began(self, name: str, *, epochs: int, steps: int, done: int, unit: str) -> None:
        name = self.title if self.title and name == "train" else name
        self.name, self.epochs, self.left = name, epochs, epochs - done // steps
        self.unit, self.waiting = unit, 0
        self.began = self.shown = self.stepped = time.perf_counter()
        fields: dict[str, Any] = {"epoch": done // steps, "epochs": epochs, "note": "", "live": ""}
        self.task = self.bar.add_task(name, total=epochs * steps, completed=done, **fields)

    def step_done(self, loss: Tensor, inputs: int) -> None:
        self.bar.advance(self.task)
        self.waiting, self.stepped = self.waiting + inputs, time.perf_counter()
        passed = self.stepped - self.shown
        # seldom, because reading the loss waits for the device
        if self.console.is_terminal and passed >= LIVE_SECONDS:
            live = f"loss {float(loss):.3f}, {self.waiting / passed:,.0f} {self.unit}/s"
            self.bar.update(self.task, live=live)
            self.waiting, self.shown = 0, time.perf_counter()

    def epoch_done(self, record: dict[str, Any]) -> None:
        loss, *parts = epoch_parts(record)
        # the bar shows the loss of the last step, and in a narrow terminal only the first figure of the epoch
        shown = parts if self.console.width >= WIDE_BAR else parts[:1]
        self.bar.update(self.task, epoch=record["epoch"], note=", ".join(shown))
        # images per second are those of training, without the test that is over now
        self.shown += time.perf_counter() - self.stepped
        if not self.console.is_terminal:
            note = ", ".join([loss, *parts])
            done = record["epoch"] - (self.epochs - self.left)
            remaining = (time.perf_counter() - self.began) / done * (self.epochs - record["epoch"])
            line = f"{self.name} epoch {record['epoch']}/{self.epochs}: {note}, {remaining:.0f} s left"
            self.console.print(line, soft_wrap=True, highlight=False)

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()


def epoch_parts(record: dict[str, Any]) -> list[str]:
    """Loss, headline figure, zeros, unless they were cut before, and MACs of an epoch in a few words each."""
    parts = [f"loss {record['train_loss']:.3f}"]
    if "test_accuracy" in record:
        parts.append(f"test {record['test_accuracy']:.2%}")
    elif "validation_mape" in record:
        parts.append(f"validation error {record['validation_mape']:.2f}%")
    elif "validation_nats_per_token" in record:
        parts.append(f"validation {record['validation_nats_per_token']:.3f} nats per token")
    if record.get("phase") != "retrain":
        parts.append(f"zeros {record['zeros']:.1%}")
    if "edges" in record:
        parts.append(f"{record['edges']:,} edges")
    if record.get("macs") is not None:
        parts.append(f"MACs {record['macs'] / 1e6:.2f}M")
    return parts
