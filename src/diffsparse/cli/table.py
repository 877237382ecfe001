"""Results of runs side by side."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from diffsparse.methods.method import uses_strength
from diffsparse.training.report import REPORTS, cost_cells, reports_in

_LAST = ("zeros", "MACs", "params", "file kB", "train s")
"""Columns behind those of method, figures and reports."""
WIDE = 150
"""Characters per line in a file or a pipe, which has no width of its own: tables keep their words whole."""


def wide_console() -> Console:
    """A console as wide as the terminal, or wide enough for a table of runs where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=max(WIDE, console.width))


def results_table(results: Mapping[str, dict[str, Any]]) -> Table:
    """One row per run, by its name."""
    rows = {name: _cells(result) for name, result in results.items()}
    captions = [
        report.caption for name, report in REPORTS.items() if any(name in result for result in results.values())
    ]
    if any("MACs" in cells for cells in rows.values()):
        captions.insert(0, "compact network, one input; in brackets the share of the plain one")
    table = Table(caption="\n".join(captions))
    table.add_column("run", overflow="fold")
    found = dict.fromkeys(heading for cells in rows.values() for heading in cells)
    headings = sorted(found, key=lambda heading: _LAST.index(heading) if heading in _LAST else -1)
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    for name, cells in rows.items():
        table.add_row(name, *(cells.get(heading, "-") for heading in headings))
    return table


def _cells(result: dict[str, Any]) -> dict[str, str]:
    """What the table says of a run, by the heading of its column."""
    settings, figures, cost = result["config"]["sparsifying"], result["figures"]["compact"], result["cost"]
    cells = {
        "method": settings["method"],
        "lambda": f"{settings['strength']:g}" if uses_strength(settings["method"]) else "-",
    }
    cells |= {name: _figure(name, value) for name, value in figures.items() if name != "loss"}
    cells |= {"zeros": f"{result['zeros']['fraction']:.1%}"} | cost_cells(cost["compact"], cost["plain"])
    cells |= {"file kB": f"{cost['compact']['file_bytes'] / 1e3:,.0f}"}
    for _, report in reports_in(result):
        cells = report.columns(result, cells)
    return cells | {"train s": f"{sum(result['training_seconds'].values()):,.0f}"}


def _figure(name: str, value: float) -> str:
    return f"{value:.2%}" if name == "accuracy" else f"{value:.4g}"
