"""A picture of the learned graph: nodes by group, live edges, and how many edges a node has."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from diffsparse.plot.picture import blank_figure, save_picture
from diffsparse.wiring.graph import Live, StageGraph, WiringGraph, live_recursively, wiring_graph

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LINES = 20_000
"""Edges of a stage beyond this are thinned out evenly."""
COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#8172b3", "#c44e52")
ALIVE, CONSTANT, DEAD, IDLE = "#222222", "#e6a000", "#d9d9d9", "#999999"
STAGE_GAP = 0.35
"""Distance between two stages' columns over that of two groups, less one."""


def draw_wiring(net: nn.Module | WiringGraph, path: str | os.PathLike[str]) -> Path:
    """Draw the graph of a wired network into an SVG or PNG file, by the ending of `path`.

    The columns are the input nodes and the groups of each stage. A node is dark where the output depends on the image
    through it, amber where it only sends a constant, pale where it is dead; output nodes of the last stage send
    nothing, and are dark or pale. Edges on a path from the image to the classifier have the colour of their stage,
    others are grey. Below, for each stage, the distribution of the number of live edges into and out of live nodes.

    Needs the `report` extra.

    Example:
        >>> import tempfile
        >>> from diffsparse.wiring.mobilenet import WiredMobileNet
        >>> draw_wiring(WiredMobileNet(width=0.125, small=True), tempfile.mkdtemp() + "/wiring.svg").name
        'wiring.svg'
    """
    save_picture(path, wiring_figure(net if isinstance(net, WiringGraph) else wiring_graph(net)))
    return Path(path)


def wiring_figure(graph: WiringGraph) -> "Figure":
    """The picture of `draw_wiring`, not yet written."""
    live = live_recursively(graph)
    columns = 1 + sum(stage.shape.groups for stage in graph.stages)
    figure = blank_figure(max(8.0, 0.95 * columns + 1), 8.5)
    grid = figure.add_gridspec(2, len(graph.stages), height_ratios=(3, 1))
    _draw_graph(figure.add_subplot(grid[0, :]), graph, live)
    for i, stage in enumerate(graph.stages):
        _draw_degrees(figure.add_subplot(grid[1, i]), stage, live, i)
    figure.suptitle(_title(graph, live))
    return figure


def _title(graph: WiringGraph, live: Live) -> str:
    edges = sum(int(matrix.sum()) for stage in live.edges for matrix in stage)
    senders = sum(int(mask.sum()) for groups in live.nodes for mask in groups[:-1])
    total = sum(sum(stage.shape.sources) for stage in graph.stages)
    thinned = max(int(sum(matrix.sum() for matrix in stage)) for stage in live.edges) > MOST_LINES
    return (
        f"{edges:,} of {graph.usable_edges:,} edges alive ({edges / graph.usable_edges:.2%}), "
        f"{senders:,} of {total:,} nodes{f'; {MOST_LINES:,} edges of a stage drawn at most' if thinned else ''}"
    )


def _draw_graph(axes: Any, graph: WiringGraph, live: Live) -> None:
    places = list(_places(graph))
    for i, stage in enumerate(graph.stages):
        _draw_edges(axes, stage, live.edges[i], places[i], COLOURS[i % len(COLOURS)])
    for i, at in enumerate(places):
        read = live.nodes[i + 1][0] if i + 1 < len(places) else live.nodes[i][-1]
        for group, x in enumerate(at):
            last = group == len(at) - 1
            if last and i + 1 < len(places):
                # the next stage draws these nodes as its input nodes
                continue
            alive = read if last else live.nodes[i][group]
            _draw_nodes(axes, x, alive, live.constant[i][group])
        middle = (at[0] + at[-1]) / 2
        axes.text(middle, 1.045, f"stage {i + 1}", ha="center", color=COLOURS[i % len(COLOURS)], weight="bold")
    axes.set_ylim(-0.09, 1.08)
    axes.set_axis_off()
    _add_key(axes)


def _add_key(axes: Any) -> None:
    from matplotlib.lines import Line2D

    nodes = {"node alive": ALIVE, "sends a constant": CONSTANT, "dead": DEAD}
    marks = [Line2D([], [], marker="o", linestyle="", color=colour, label=name) for name, colour in nodes.items()]
    marks.append(Line2D([], [], color=IDLE, label="edge on no path from the image to the classifier"))
    axes.legend(handles=marks, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8, frameon=False)


def _places(graph: WiringGraph) -> Iterator[list[float]]:
    """For each stage the place of every group; the first is where the stage before ended."""
    start = 0.0
    for stage in graph.stages:
        yield [start, *(start + STAGE_GAP + group for group in range(1, stage.shape.groups + 1))]
        start += STAGE_GAP + stage.shape.groups


def _heights(count: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    return (np.arange(count) + 0.5) / count


def _draw_nodes(axes: Any, x: float, alive: Tensor, constant: Tensor) -> None:
    heights = _heights(len(alive))
    size = float(np.clip(600 / len(alive), 1.5, 20))
    dead = ~(alive | constant)
    for mask, colour, order in ((dead, DEAD, 2), (constant, CONSTANT, 4), (alive, ALIVE, 3)):
        chosen = heights[mask.cpu().numpy()]
        axes.scatter(np.full(len(chosen), x), chosen, s=size, color=colour, linewidths=0, zorder=order)
    axes.text(x, -0.03, f"{int(alive.sum())}", ha="center", va="top", fontsize=9)
    axes.text(x, -0.065, f"of {len(alive)}", ha="center", va="top", fontsize=7, color="#777777")


def _draw_edges(axes: Any, stage: StageGraph, live: tuple[Tensor, ...], at: list[float], colour: str) -> None:
    from matplotlib.collections import LineCollection

    for kept, shade, strength in (
        ([there & ~alive for there, alive in zip(stage.edges, live, strict=True)], IDLE, 0.8),
        (live, colour, 1.0),
    ):
        lines = _thinned(np.concatenate([_lines(stage, matrix, target, at) for target, matrix in enumerate(kept, 1)]))
        if len(lines):
            alpha = strength * float(np.clip(40 / len(lines) ** 0.75, 0.025, 0.8))
            axes.add_collection(
                LineCollection(
                    list(lines), colors=shade, alpha=alpha, linewidths=0.5, rasterized=len(lines) > 2000, zorder=1
                )
            )


def _lines(stage: StageGraph, matrix: Tensor, target: int, at: list[float]) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Ends of the edges into a group: (edges, 2, 2)."""
    sources = stage.shape.sources[:target]
    source_x = np.repeat(at[:target], sources)
    source_y = np.concatenate([_heights(count) for count in sources])
    rows, columns = (index.cpu().numpy() for index in matrix.nonzero(as_tuple=True))
    starts = np.stack([source_x[columns], source_y[columns]], 1)
    ends = np.stack([np.full(len(rows), at[target]), _heights(stage.shape.outputs)[rows]], 1)
    return np.stack([starts, ends], 1)


def _thinned(lines: "np.ndarray[Any, np.dtype[np.float64]]") -> "np.ndarray[Any, np.dtype[np.float64]]":
    if len(lines) <= MOST_LINES:
        return lines
    return np.random.default_rng(0).permutation(lines)[:MOST_LINES]


def _draw_degrees(axes: Any, stage: StageGraph, live: Live, index: int) -> None:
    incoming = torch.cat([matrix.sum(1) for matrix in live.edges[index]])
    outgoing = torch.zeros(sum(stage.shape.sources), dtype=torch.long, device=incoming.device)
    for matrix in live.edges[index]:
        outgoing[: matrix.shape[1]] += matrix.sum(0)
    counts = {"in": incoming[incoming > 0].cpu().numpy(), "out": outgoing[outgoing > 0].cpu().numpy()}
    widest = max((int(degrees.max()) for degrees in counts.values() if len(degrees)), default=1)
    step = -(-widest // 40)
    bins = np.arange(0.5, widest + step + 0.5, step)
    styles: dict[str, dict[str, Any]] = {"in": {"alpha": 0.45}, "out": {"histtype": "step", "lw": 1.3}}
    for name, degrees in counts.items():
        mean = f"{degrees.mean():.1f}" if len(degrees) else "none"
        colour = COLOURS[index % len(COLOURS)] if name == "in" else ALIVE
        axes.hist(degrees, bins=bins, color=colour, label=f"{name}, mean {mean}", **styles[name])
    axes.set_xlabel("edges of a live node", fontsize=8)
    if index == 0:
        axes.set_ylabel("nodes", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.locator_params(integer=True, nbins=6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(0, max(float(bins[-1]), 3.5) + 0.5)
    axes.legend(fontsize=7, frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
