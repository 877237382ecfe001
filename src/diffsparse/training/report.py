"""What a feature adds to the results of a run: figures, files, columns of the table."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from diffsparse.data.dataset import DataSet
from diffsparse.registry import Registry


class RunReport(ABC):
    """Asked about every trained model at the end of a run; most reports are about few models."""

    caption: str = ""
    """A line under a table that has a run with this report."""

    @abstractmethod
    def figures(self, model: nn.Module, data: DataSet, say: Callable[[str], None]) -> dict[str, Any] | None:
        """Plain data for result.json, under the name of the report; None if it is not about this model."""

    def write(self, model: nn.Module, data: DataSet, folder: Path, say: Callable[[str], None]) -> None:  # noqa: B027
        """Write files into the folder of the run; `say` prints a line for the user."""

    def costs(self, result: Mapping[str, Any]) -> dict[str, dict[str, int]]:
        """What the networks "plain" and "compact" cost (macs, params), if not what is in the result."""
        return {}

    def columns(self, result: Mapping[str, Any], cells: dict[str, str]) -> dict[str, str]:
        """The cells of a run with this report, made from the usual ones."""
        return cells


REPORTS = Registry[RunReport]("report")
register_report = REPORTS.add
"""Add a report; its figures are in result.json under its name."""


def reports_in(result: Mapping[str, Any]) -> list[RunReport]:
    """The reports that have figures in a result."""
    return [report for name, report in REPORTS.items() if name in result]


def costs_in(result: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """What the plain and the compact network of a run cost, as its reports see it."""
    costs: dict[str, dict[str, int]] = {name: dict(result["cost"][name]) for name in ("plain", "compact")}
    for report in reports_in(result):
        for name, own in report.costs(result).items():
            costs[name] |= own
    return costs


def cost_cells(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, str]:
    """Cells for MACs and parameters, each with its share of what it was before."""
    return {
        heading: f"{short_number(now[key])} ({now[key] / before[key]:.1%})"
        for heading, key in (("MACs", "macs"), ("params", "params"))
    }


def short_number(number: int) -> str:
    """Three digits and a unit.

    Example:
        >>> short_number(763_520), short_number(1_050)
        ('764k', '1.05k')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)
