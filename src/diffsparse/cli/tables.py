"""Tables: what a data set holds (`diffsparse data`) and how finished runs went (`diffsparse report`)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from diffsparse.cli.model_commands import check_writable
from diffsparse.data import open_data
from diffsparse.errors import SparsityError
from diffsparse.files import write_json
from diffsparse.records import RunRecord, read_run
from diffsparse.report import write_report
from diffsparse.report.cells import result_cells
from diffsparse.training.report import REPORTS

_LAST = ("zeros", "MACs", "params", "file kB", "train s")
"""Columns of a run behind those of method, figures and reports."""
WIDE = 150
"""Characters per line in a file or a pipe, which has no width of its own, so that tables keep their words whole."""
BAR = 12
"""Characters of the longest bar."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Check that a data set is there, or download it, and say what it holds."""

    name: Positional[str]
    """digits, cifar10, cifar100, imagenet, or folder for images of your own, one folder per class; text,
    labelled-text or plain-text for text files of your own; los-loop, sz-taxi-40, metr-la, pems-bay, synthetic-roads,
    or roads for speeds.csv and map.csv of your own."""
    data_root: Path | None = None
    """The folder it is in; by default the variable DIFFSPARSE_DATA says it. The digits need none."""
    download: bool = False
    """Download CIFAR to the data root if it is not there."""

    def run(self) -> None:
        """Open the data set and print its table."""
        # a download has its own bar, which could not be shown within a status
        data = open_data(self.name, root=self.data_root, download=self.download)
        summary = data.summary()
        rows = {part: dict(zip(summary.headings, cells, strict=True)) for part, cells in summary.rows.items()}
        Console().print(figures_table("part", rows, title=data.name, caption=summary.caption or ""))


@dataclass(frozen=True, kw_only=True)
class Report:
    """Put finished runs into one table, or on one page."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN ...")]
    """Folders of runs."""
    output: Path | None = None
    """Where to also write the results as JSON."""
    html: Path | None = None
    """Where to also write a page with everything about the runs, in one file that needs no network."""

    def run(self) -> None:
        """Read, print, write."""
        if not self.runs:
            raise SparsityError("give the folders of one or more finished runs")
        check_writable(self.output, "--output")
        check_writable(self.html, "--html")
        if len({folder.resolve() for folder in self.runs}) < len(self.runs):
            raise SparsityError("a run is given twice; leave one out")
        if len({folder.name for folder in self.runs}) < len(self.runs):
            raise SparsityError("two of the runs have folders of the same name; rename one")
        console = wide_console()
        runs: list[RunRecord] = []
        for folder in self.runs:
            try:
                runs.append(read_run(folder))
            except SparsityError as error:
                # one run that is still going must not hide the others
                if len(self.runs) == 1:
                    raise
                console.print(f"left out: {error}", markup=False, soft_wrap=True)
        if not runs:
            raise SparsityError("none of the runs is finished")
        results = {run.name: run.result for run in runs}
        console.print(results_table(results))
        if self.output is not None:
            write_json(self.output, results)
            console.print(f"results in {self.output}", markup=False, soft_wrap=True)
        if self.html is not None:
            write_report(self.html, runs)
            console.print(f"page in {self.html}", markup=False, soft_wrap=True)


def wide_console() -> Console:
    """A console as wide as the terminal, or wide enough for a table of runs if there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=max(WIDE, console.width))


def figures_table(
    first: str, rows: Mapping[str, Mapping[str, str]], *, title: str = "", caption: str = "", last: Sequence[str] = ()
) -> Table:
    """One row per name, under the heading `first`, with its cells by heading; the columns `last` come last."""
    table = Table(title=title, caption=caption)
    table.add_column(first, overflow="fold")
    found = dict.fromkeys(heading for cells in rows.values() for heading in cells)
    headings = sorted(found, key=lambda heading: last.index(heading) if heading in last else -1)
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    for name, cells in rows.items():
        table.add_row(name, *(cells.get(heading, "-") for heading in headings))
    return table


def widths_table(widths: Mapping[str, Mapping[str, int]]) -> Table:
    """Outputs of every layer as bars, by network; the first network has all layers, 0 stands for one that is gone."""
    whole = next(iter(widths.values()))
    unit = max(whole.values()) / BAR
    table = Table(title="Outputs of each layer", box=None, padding=(0, 1))
    table.add_column("", no_wrap=True)
    for name in widths:
        table.add_column(name, no_wrap=True)
    for layer in whole:
        counts = [own.get(layer, 0) for own in widths.values()]
        table.add_row(layer, *(f"{'█' * math.ceil(count / unit)} {count}" for count in counts))
    return table


def results_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """One row per run, by its name."""
    rows = {name: result_cells(result) for name, result in results.items()}
    present = {name for result in results.values() for name in result}
    captions = [report.caption for name, report in REPORTS.items() if name in present]
    if any("MACs" in cells for cells in rows.values()):
        captions[:0] = [
            "zeros: share of channels, neurons, heads or edges that were closed or cut",
            "MACs, params: compact network, one input; in brackets the share of the plain one",
        ]
    return figures_table("run", rows, caption="\n".join(captions), last=_LAST)
