"""The pictures in docs/figures, from result files: `make tables` draws them anew."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tables
import torch
from torch import nn

import diffsparse as ds
from diffsparse.models import PreResNet
from diffsparse.plot import blank_figure, save_picture
from diffsparse.testing import zero_channels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = tables.ROOT / "docs" / "figures"
OURS, GREY = "#4477aa", "#999999"
COLOURS = ("#cc6677", "#ee9955", "#aa3377", "#bb88dd", "#228833")


def _axes(title: str, x: str, y: str, height: float = 3.2) -> "tuple[Figure, Axes]":
    figure = blank_figure(6.4, height)
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure, axes


def tradeoff() -> "Figure":
    """Accuracy over MACs: ours against others at equal cost."""
    rows = tables.comparison()
    figure, axes = _axes(
        "ResNet-20 on small CIFAR-10 images, equal epochs", "MACs, % of the whole network", "accuracy, %"
    )
    whole = tables.find(rows, "plain", 1.0)
    assert whole is not None
    axes.axhline(100 * whole["accuracy"], color=GREY, linestyle="--", linewidth=1, label="whole network")
    methods = {"diffsparse": tables.OURS} | tables.PEERS
    for (title, name), colour in zip(methods.items(), (OURS, *COLOURS), strict=True):
        width = 2.5 if name == tables.OURS else 1.2
        found = [row for share in tables.costs(rows) if (row := tables.find(rows, name, share))]
        x, y = ([100 * row[key] for row in found] for key in ("macs", "accuracy"))
        error = [100 * (row["spread"] or 0) for row in found]
        axes.errorbar(x, y, yerr=error, color=colour, linewidth=width, marker="o", markersize=4, capsize=2, label=title)
    axes.set_xlim(0, 55)
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    return figure


def strength() -> "Figure":
    """Zeros and accuracy over lambda, on the digits."""
    runs: dict[str, Any] = json.loads((tables.RESULTS / "digits-strength.json").read_text())
    gated = sorted(
        (run["config"]["sparsifying"]["strength"], run)
        for run in runs.values()
        if run["config"]["sparsifying"]["method"] == "ds"
    )
    figure, axes = _axes("preresnet14 on the digits, the paper's loss", "lambda", "%")
    x = [value for value, _ in gated]
    axes.plot(x, [100 * run["zeros"]["fraction"] for _, run in gated], marker="o", color=OURS, label="zero channels")
    left = [100 * run["cost"]["compact"]["macs"] / run["cost"]["plain"]["macs"] for _, run in gated]
    axes.plot(x, left, marker="o", color="#cc6677", label="MACs that are left")
    right = [100 * run["figures"]["compact"]["accuracy"] for _, run in gated]
    axes.plot(x, right, marker="o", color="#228833", label="test accuracy")
    axes.set_xscale("log")
    axes.legend(fontsize=8, frameon=False, loc="center left")
    return figure


def roads() -> "Figure":
    """Error over entries of a learned graph, los-loop."""
    rows: dict[str, Any] = json.loads((tables.RESULTS / "traffic-los-loop.json").read_text())
    figure, axes = _axes("A graph learned from speeds on roads (los-loop)", "entries of the graph, %", "error, MAPE %")
    for name, row in rows.items():
        if not isinstance(row, dict) or "median" not in row:
            continue
        best = row["median"]
        colour = OURS if name.startswith("ours") else GREY
        place = 100 * best["nonzeros"] / best["entries"]
        axes.scatter([place], [best["mape"]], color=colour, zorder=3)
        axes.annotate(name, (place, best["mape"]), textcoords="offset points", xytext=(0, 8), rotation=25, fontsize=8)
    axes.set_xscale("log")
    axes.margins(x=0.15, y=0.25)
    return figure


def widths() -> "Figure":
    """Widths of the layers of a network, half of whose channels are zero, before and after compaction."""
    torch.manual_seed(0)
    model = PreResNet(14, in_channels=1)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            dead = torch.randperm(norm.num_features)[: norm.num_features // 2]
            zero_channels(norm, dead.tolist())
    return ds.compact(model.eval(), torch.randn(1, 1, 8, 8)).plot()


DRAWN: dict[str, "Callable[[], Figure]"] = {
    "tradeoff": tradeoff,
    "strength": strength,
    "roads": roads,
    "widths": widths,
}

if __name__ == "__main__":
    FIGURES.mkdir(exist_ok=True)
    for figure_name, draw in DRAWN.items():
        save_picture(FIGURES / f"{figure_name}.svg", draw())
        print(f"drew docs/figures/{figure_name}.svg")
