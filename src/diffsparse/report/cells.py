"""What a table says of a finished run, in words."""

from collections.abc import Mapping
from typing import Any

from diffsparse.methods.method import uses_strength
from diffsparse.training.report import cost_cells, reports_in


def result_cells(result: Mapping[str, Any]) -> dict[str, str]:
    """What the table of runs says of one, by the heading of its column."""
    settings, figures, cost = result["config"]["sparsifying"], result["figures"]["compact"], result["cost"]
    cells = {"method": settings["method"], "lambda": _strength(result)}
    for name, value in figures.items():
        if name != "loss":
            cells[name] = f"{value:.2%}" if name == "accuracy" else f"{value:.4g}"
    cells |= {"zeros": f"{result['zeros']['fraction']:.1%}"} | cost_cells(cost["compact"], cost["plain"])
    cells |= {"file kB": f"{cost['compact']['file_bytes'] / 1e3:,.0f}"}
    for report in reports_in(result):
        cells = report.columns(result, cells)
    return cells | {"train s": f"{sum(result['training_seconds'].values()):,.0f}"}


def _strength(result: Mapping[str, Any]) -> str:
    """The last lambda in force; "budget" if a cost was asked for and there was none."""
    settings = result["config"]["sparsifying"]
    strength = result.get("strength", settings.get("strength")) if uses_strength(settings["method"]) else None
    if strength is None:
        return "budget" if result.get("asked") else "-"
    return f"{strength:.3g}"
