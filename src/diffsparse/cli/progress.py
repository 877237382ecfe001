"""How far a training run is: a bar on a terminal, a line now and then elsewhere."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

# Where no bar can be shown, this many epochs pass between lines.
EPOCHS_A_LINE = 5


class Report:
    """Tells `console` of the epochs of several runs, one after the other."""

    def __init__(self, console: Console, epochs: int) -> None:
        self.console, self.epochs = console, epochs
        self.bar = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def begin(self, kind: str) -> None:
        """A run called `kind` begins."""
        self.kind, self.done = kind, 0
        self.task = self.bar.add_task(kind, total=self.epochs, note="")

    def epoch_done(self, note: str) -> None:
        """An epoch of it is over; `note` says how it went."""
        self.done += 1
        self.bar.update(self.task, advance=1, note=note)
        if not self.console.is_terminal and (self.done % EPOCHS_A_LINE == 0 or self.done == self.epochs):
            self.console.print(f"{self.kind} epoch {self.done}/{self.epochs}: {note}", soft_wrap=True, highlight=False)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
