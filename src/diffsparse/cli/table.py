"""Results of runs side by side."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table


def results_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """One row a run, by its name."""
    table = Table(caption="compact network, one input; in brackets the share of the plain one")
    table.add_column("run")
    for heading in (
        "method",
        "strength",
        *_headlines(results),
        "zero channels",
        "MACs",
        "parameters",
        "file kB",
        "train s",
    ):
        table.add_column(heading, justify="right")
    for name, result in results.items():
        table.add_row(name, *_cells(result, _headlines(results)))
    return table


def _headlines(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    found: dict[str, None] = {}
    for result in results.values():
        found |= dict.fromkeys(key for key in result["figures"]["compact"] if key != "loss")
    return list(found)


def _cells(result: Mapping[str, Any], headlines: list[str]) -> list[str]:
    settings, cost = result["config"]["sparsifying"], result["cost"]
    plain, small = cost["plain"], cost["compact"]
    figures = result["figures"]["compact"]
    return [
        settings["method"],
        "-" if settings["method"] in ("plain", "scratch", "torch-pruning") else f"{settings['strength']:g}",
        *(_figure(name, figures.get(name)) for name in headlines),
        f"{result['zeros']['fraction']:.1%}",
        f"{_short(small['macs'])} ({small['macs'] / plain['macs']:.0%})",
        f"{_short(small['params'])} ({small['params'] / plain['params']:.0%})",
        f"{small['file_bytes'] / 1e3:,.0f}",
        f"{sum(result['training_seconds'].values()):,.0f}",
    ]


def _short(number: int) -> str:
    """Three digits and a unit.

    Example:
        >>> _short(763_520), _short(1_050)
        ('764k', '1.05k')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2%}" if name == "accuracy" else f"{value:.4g}"
