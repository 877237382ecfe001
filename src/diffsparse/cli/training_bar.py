"""Progress of a training run: a bar on a terminal, one line per epoch elsewhere."""

import time
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from diffsparse.training import Watcher


class TrainingBar(Watcher):
    """Shows steps and epochs on `console`; a phase called "train" goes by the `title`, if one is set."""

    def __init__(self, console: Console) -> None:
        self.console, self.title = console, ""
        self.bar = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(bar_width=20),
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = TaskID(0)

    def phase_began(self, name: str, *, epochs: int, steps: int, done: int) -> None:
        name = self.title if self.title and name == "train" else name
        self.name, self.epochs, self.left = name, epochs, epochs - done // steps
        self.began = time.perf_counter()
        fields: dict[str, Any] = {"epoch": done // steps, "epochs": epochs, "note": ""}
        self.task = self.bar.add_task(name, total=epochs * steps, completed=done, **fields)

    def step_done(self) -> None:
        self.bar.advance(self.task)

    def epoch_done(self, record: dict[str, Any]) -> None:
        note = epoch_note(record)
        self.bar.update(self.task, epoch=record["epoch"], note=note)
        if not self.console.is_terminal:
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


def epoch_note(record: dict[str, Any]) -> str:
    """Loss, headline figure, zeros and MACs of an epoch in a few words."""
    parts = [f"loss {record['train_loss']:.3f}"]
    if "test_accuracy" in record:
        parts.append(f"test {record['test_accuracy']:.2%}")
    elif "validation_mape" in record:
        parts.append(f"validation error {record['validation_mape']:.2f}%")
    parts.append(f"zeros {record['zeros']:.1%}")
    if "edges" in record:
        parts.append(f"{record['edges']:,} edges")
    if record.get("macs") is not None:
        parts.append(f"MACs {record['macs'] / 1e6:.2f}M")
    return ", ".join(parts)
