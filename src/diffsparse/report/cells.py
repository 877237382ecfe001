"""What a table says of a finished run, in words."""

from collections.abc import Mapping
from typing import Any

from diffsparse.methods.method import uses_strength
from diffsparse.methods.settings import epochs_after_cut
from diffsparse.training.report import cost_cells, reports_in


def result_cells(result: Mapping[str, Any]) -> dict[str, str]:
    """What the table of runs says of one, by the heading of its column."""
    settings, figures, cost = result["config"]["sparsifying"], result["figures"]["compact"], result["cost"]
    cells = {"method": settings["method"], "epochs": _epochs(result), "lambda": _strength(result)}
    for name, value in figures.items():
        if name != "loss":
            cells[name] = f"{value:.2%}" if name == "accuracy" else f"{value:.4g}"
    cells |= {"zeros": _zeros(result["zeros"])} | cost_cells(cost["compact"], cost["plain"])
    cells |= {"file kB": f"{cost['compact']['file_bytes'] / 1e3:,.0f}"}
    for report in reports_in(result):
        cells = report.columns(result, cells)
    return cells | {"train s": f"{sum(result['training_seconds'].values()):,.0f}"}


def _epochs(result: Mapping[str, Any]) -> str:
    """Epochs of training, and those after a cut."""
    config = result["config"]
    if "retrain" not in result["training_seconds"]:
        return f"{config['epochs']}"
    again = epochs_after_cut(config["epochs"], config["sparsifying"].get("retrain_epochs"))
    return f"{config['epochs']} + {again}"


def _strength(result: Mapping[str, Any]) -> str:
    """The last lambda in force, or "budget" if a cost was asked for and there was none; "-" without any lambda."""
    settings = result["config"]["sparsifying"]
    if not uses_strength(settings["method"]):
        return "-"
    strength = result.get("strength", settings.get("strength"))
    if strength is None:
        return "budget" if result.get("asked") else "-"
    return f"{strength:.3g}"


def _zeros(zeros: Mapping[str, Any]) -> str:
    """The share of zeros, for each kind of them if there are several."""
    kinds = zeros.get("kinds", {})
    if len(kinds) < 2:
        return f"{zeros['fraction']:.1%}"
    return "\n".join(f"{kind} {count['fraction']:.1%}" for kind, count in kinds.items())
