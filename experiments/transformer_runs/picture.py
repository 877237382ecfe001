"""A picture of what is left of every layer: heads and neurons, by method and budget."""

import re
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from diffsparse.plot import blank_figure, save_picture

KINDS = ("heads", "neurons")
PICTURED = ("ours, from trained", "magnitude, from trained", "ours, from scratch")
"""Rows that choose what dies."""


def shares_left(run: Mapping[str, Any], whole: Mapping[str, int]) -> dict[str, list[float]]:
    """By kind, the share of its heads or neurons that each layer has left.

    Args:
        run: the record of a run.
        whole: heads and neurons of the layers before, by name.

    Example:
        >>> shares_left({"left": {"h.0.attn.c_proj": 1}}, {"h.0.attn.c_proj": 4, "h.0.mlp.c_proj": 8})
        {'heads': [0.25], 'neurons': [0.0]}
    """
    shares: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for name, count in whole.items():
        attends = re.search(r"\b(attn|attention)\b", name) is not None
        shares["heads" if attends else "neurons"].append(run["left"].get(name, 0) / count)
    return shares


def draw_left(path: Path, runs: Iterable[Mapping[str, Any]]) -> None:
    """Write the picture: means over seeds, one column per layer, one row per method, budget and kind."""
    known = list(runs)
    whole = next((run["left"] for run in known if run["row"] == "plain"), None)
    groups: dict[tuple[float, str], list[Mapping[str, Any]]] = {}
    for run in known:
        if run["row"] in PICTURED:
            groups.setdefault((-run["budget"], run["row"]), []).append(run)
    if whole is None or not groups:
        return
    labels, rows = [], []
    for (budget, name), members in sorted(groups.items()):
        found = [shares_left(run, whole) for run in members]
        for kind in KINDS:
            labels.append(f"{kind}, {name}, {-budget:.0%}")
            rows.append([statistics.mean(layer) for layer in zip(*(shares[kind] for shares in found), strict=True)])
    figure = blank_figure(7, 1 + 0.3 * len(rows))
    axes = figure.add_subplot()
    axes.imshow(rows, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for down, row in enumerate(rows):
        for right, share in enumerate(row):
            colour = "white" if share > 0.6 else "black"
            axes.text(right, down, f"{share:.0%}", ha="center", va="center", fontsize=7, color=colour)
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.set_xticks(range(len(rows[0])), [f"layer {number + 1}" for number in range(len(rows[0]))], fontsize=7)
    axes.set_title("what is left of each layer", fontsize=9)
    save_picture(path, figure)
