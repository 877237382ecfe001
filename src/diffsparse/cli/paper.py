"""`diffsparse paper`: makes the runs behind tables and figures, and shows them beside what was reported."""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table as Shown
from tyro.conf import Positional

from diffsparse.cli.tables import wide_console
from diffsparse.errors import SparsityError, require_whole
from diffsparse.files import write_text
from diffsparse.recipes.book import Book, read_book
from diffsparse.recipes.columns import CONVENTIONS
from diffsparse.recipes.data_table import collect_data, data_grid
from diffsparse.recipes.grid import Grid, table_grid
from diffsparse.recipes.jobs import Job, jobs_of
from diffsparse.recipes.page import page_path, page_text
from diffsparse.recipes.pictures import draw_pictures
from diffsparse.recipes.progress import Estimate, RunWatcher, in_words
from diffsparse.recipes.results import is_collected
from diffsparse.recipes.runner import Runner, with_data
from diffsparse.training import StoppedError
from diffsparse.training.processes import own_rank

RECIPES = Path("experiments", "paper")


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Make the runs behind the paper's tables and figures, or show them beside the paper's numbers."""

    tables: Positional[tuple[str, ...]] = ()
    """Names or labels of tables and figures; by default all."""
    size: Literal["paper", "day", "small"] = "small"
    """paper: the paper's setting, for GPUs; day: about a day on one GPU; small: two CPU cores."""
    data_root: Path | None = None
    """Folder of the data; by default the variable DIFFSPARSE_DATA."""
    jobs: int = 1
    """Runs at a time, each in its own process. With torchrun leave it at 1: all processes share each run."""
    recipes: Path = RECIPES
    """Folder of the recipes; by default that of the checkout."""
    runs: Path = Path("runs", "paper")
    """Folder for the runs."""
    show: bool = False
    """Only show what is there."""
    convention: Literal["paper", "own"] = "paper"
    """How to count when showing: the paper's way (FLOPs = 2 x MACs, layers are batch norms, one hop), or ours."""
    write: bool = False
    """Only write the page with all tables, from the results that are there."""

    def run(self) -> None:
        """Run what is missing, show, write."""
        require_whole("--jobs", self.jobs, low=1)
        book = read_book(self.recipes)
        names = book.chosen(self.tables)
        failures = {} if self.show or self.write else self._make(book, names)
        if own_rank() == 0:
            if self.write or not self.show:
                write_text(page_path(book), page_text(book))
            console = wide_console()
            if not self.write:
                for name in names:
                    console.print(*_shown(book, name, self.size, self.convention), sep="\n", soft_wrap=True)
            if self.write or not self.show:
                console.print(f"page in {page_path(book)}", markup=False, soft_wrap=True)
        if failures:
            name, reason = next(iter(failures.items()))
            raise SparsityError(f"{len(failures)} runs could not be made; the first is {name}: {reason}")

    def _make(self, book: Book, names: tuple[str, ...]) -> dict[str, str]:
        """Make the missing runs; gives the reasons of those that could not be made."""
        if self.jobs > 1 and os.environ.get("WORLD_SIZE", "1") != "1":
            raise SparsityError(f"with torchrun all processes share each run; leave out --jobs {self.jobs}")
        console = Console()
        jobs = jobs_of(book, names, self.size, data_root=self.data_root, runs=self.runs)
        with RunsBar(console, book, jobs, self.jobs) as bar:
            for name in names:
                for problem in collect_data(book, name, self.data_root) if own_rank() == 0 else ():
                    bar.say(f"left out of {name}: {problem}")
            runner = Runner(book, bar)
            try:
                jobs = with_data(book, jobs, bar)
                bar.expect(jobs)
                runner.run(jobs, self.runs, self.jobs)
            except StoppedError as stopped:
                words = f"stopped by {stopped.signal.name}; the same command goes on where it was"
                Console(stderr=True).print(f"diffsparse: {words}", markup=False, highlight=False, soft_wrap=True)
                sys.exit(128 + stopped.signal)
            if own_rank() == 0:
                draw_pictures(book, names, self.size, self.runs, self.data_root)
        return runner.failures


class RunsBar(RunWatcher):
    """A bar over all runs with the time left; a line per run where there is no terminal."""

    def __init__(self, console: Console, book: Book, jobs: Sequence[Job], processes: int) -> None:
        self.console, self.book, self.processes = console, book, processes
        self.expect(jobs)
        self.looked = 0.0
        words = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[left]}"))
        self.bar = Progress(*words, console=console, disable=not console.is_terminal or own_rank() != 0)
        self.task = TaskID(0)

    def expect(self, jobs: Sequence[Job]) -> None:
        """Count these runs and no others."""
        kept = frozenset(job for job in jobs if not job.done and is_collected(self.book, job))
        self.estimate = Estimate(book=self.book, jobs=tuple(jobs), processes=self.processes, kept=kept)

    def __enter__(self) -> "RunsBar":
        self.bar.start()
        self.task = self.bar.add_task("runs", total=1.0, left="")
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def began(self, job: Job) -> None:
        if not self.console.is_terminal:
            self.say(f"{job.name}: begins, {self._state()}")

    def went_on(self, running: Sequence[Job]) -> None:
        # reading all logs takes a moment
        if time.monotonic() - self.looked > 1 and self.console.is_terminal:
            self.looked = time.monotonic()
            what = "; ".join(f"{job.row} {job.seed}" for job in running)
            state = f"{self._state()}: {what}"
            self.bar.update(self.task, completed=self.estimate.share(), left=state)

    def ended(self, job: Job) -> None:
        self.say(f"{job.name}: finished, {self._state()}")

    def failed(self, job: Job, reason: str) -> None:
        self.say(f"{job.name}: failed: {reason}")

    def say(self, text: str) -> None:
        if own_rank() == 0:
            self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _state(self) -> str:
        left = in_words(self.estimate.seconds_left())
        return f"{self.estimate.finished()} of {len(self.estimate.jobs)} runs, {left}"


def _shown(book: Book, name: str, size: str, convention: str) -> list[Shown | str]:
    table = book.tables[name]
    lines: list[Shown | str] = []
    if table.data:
        lines.append(_rich(data_grid(book, name), f"{name}: {table.title}"))
    if table.rows:
        grid = table_grid(book, name, size, CONVENTIONS[convention])
        lines += [_rich(grid, f"{name}: {table.title}, size {size}, reported | ours"), *grid.notes]
    return lines


def _rich(grid: Grid, title: str) -> Shown:
    table = Shown(title=title)
    for number, heading in enumerate(grid.headings):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in grid.rows:
        table.add_row(*row)
    return table
