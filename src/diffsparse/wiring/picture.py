"""A picture of the learned graph: nodes by group, edges, and the number of edges per node."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from diffsparse.plot import register_picture
from diffsparse.plot.picture import blank_figure, save_picture
from diffsparse.plot.theme import Theme, dressed, theme
from diffsparse.wiring.graph import Live, StageGraph, WiringGraph, live_recursively, wiring_graph

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

# Edges drawn per stage; if there are more, a random sample is drawn.
MOST_LINES = 20_000
COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#8172b3", "#c44e52")
CONSTANT, IDLE = "#e6a000", "#999999"
# Extra distance between the columns of two stages, in units of the distance between two groups.
STAGE_GAP = 0.35


def draw_wiring(net: nn.Module | WiringGraph, path: str | os.PathLike[str]) -> Path:
    """Draw the graph of a wired network to an SVG or PNG file, depending on the ending of `path`.

    The columns are the input nodes and the groups of each stage. A node is dark if the output depends on the image
    through it, amber if it only sends a constant, and pale if it is dead; output nodes of the last stage send nothing
    and are dark or pale. Edges on a path from the image to the classifier have the colour of their stage, others are
    grey. Below are histograms of the number of live edges into and out of the live nodes of each stage.

    Needs the `report` extra.

    Example:
        >>> import tempfile
        >>> from diffsparse.wiring.mobilenet import WiredMobileNet
        >>> draw_wiring(WiredMobileNet(width=0.125, small=True), tempfile.mkdtemp() + "/wiring.svg").name
        'wiring.svg'
    """
    save_picture(path, wiring_figure(net))
    return Path(path)


def wiring_figure(net: nn.Module | WiringGraph, *, dark: bool = False) -> "Figure":
    """The picture of `draw_wiring`, not yet saved, on light or dark paper; `ds.plot.wiring` is this function."""
    graph, colours = wiring_graph(net), theme(dark)
    live = live_recursively(graph)
    columns = 1 + sum(stage.shape.groups for stage in graph.stages)
    figure = blank_figure(max(8.0, 0.95 * columns + 1), 8.5)
    grid = figure.add_gridspec(2, len(graph.stages), height_ratios=(3, 1))
    _draw_graph(figure.add_subplot(grid[0, :]), graph, live, colours)
    for i in range(len(graph.stages)):
        _draw_degrees(figure.add_subplot(grid[1, i]), live.edges[i], i, colours)
    edges, nodes = sum(live.edge_counts), sum(sum(stage.shape.sources) for stage in graph.stages)
    thinned = f"; at most {MOST_LINES:,} edges per stage drawn" if max(live.edge_counts) > MOST_LINES else ""
    alive = f"{edges:,} of {graph.usable_edges:,} edges alive ({edges / graph.usable_edges:.2%})"
    figure.suptitle(f"{alive}, {sum(live.sender_counts):,} of {nodes:,} nodes{thinned}")
    return dressed(figure, dark)


def _draw_graph(axes: Any, graph: WiringGraph, live: Live, colours: Theme) -> None:
    from matplotlib.lines import Line2D

    start = 0.0
    for i, stage in enumerate(graph.stages):
        groups = stage.shape.groups
        at = [start, *(start + STAGE_GAP + group for group in range(1, groups + 1))]
        _draw_edges(axes, stage, live.edges[i], at, _colour(i))
        # the next stage draws the output nodes as its input nodes
        drawn = groups + 1 if i == len(graph.stages) - 1 else groups
        for x, alive, constant in zip(at[:drawn], live.nodes[i], live.constant[i], strict=False):
            _draw_nodes(axes, x, alive, constant, colours)
        axes.text((at[0] + at[-1]) / 2, 1.045, f"stage {i + 1}", ha="center", color=_colour(i), weight="bold")
        start += STAGE_GAP + groups
    axes.set_ylim(-0.09, 1.08)
    axes.set_axis_off()
    nodes = {"node alive": colours.ink, "sends a constant": CONSTANT, "dead": colours.faint}
    marks = [Line2D([], [], marker="o", linestyle="", color=colour, label=name) for name, colour in nodes.items()]
    marks.append(Line2D([], [], color=IDLE, label="edge on no path from the image to the classifier"))
    axes.legend(handles=marks, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8, frameon=False)


def _draw_nodes(axes: Any, x: float, alive: Tensor, constant: Tensor, colours: Theme) -> None:
    heights = _heights(len(alive))
    size = float(np.clip(600 / len(alive), 1.5, 20))
    dead = ~(alive | constant)
    for mask, colour, order in ((dead, colours.faint, 2), (constant, CONSTANT, 4), (alive, colours.ink, 3)):
        chosen = heights[mask.cpu().numpy()]
        axes.scatter(np.full(len(chosen), x), chosen, s=size, color=colour, linewidths=0, zorder=order)
    axes.text(x, -0.03, f"{int(alive.sum())}", ha="center", va="top", fontsize=9, color=colours.ink)
    axes.text(x, -0.065, f"of {len(alive)}", ha="center", va="top", fontsize=7, color=colours.quiet)


def _draw_edges(axes: Any, stage: StageGraph, live: tuple[Tensor, ...], at: list[float], colour: str) -> None:
    from matplotlib.collections import LineCollection

    idle = [there & ~alive for there, alive in zip(stage.edges, live, strict=True)]
    for matrices, shade, strength in ((idle, IDLE, 0.8), (live, colour, 1.0)):
        lines = np.concatenate([_lines(stage, matrix, target, at) for target, matrix in enumerate(matrices, 1)])
        if len(lines) > MOST_LINES:
            lines = np.random.default_rng(0).permutation(lines)[:MOST_LINES]
        if len(lines):
            look = {"alpha": strength * float(np.clip(40 / len(lines) ** 0.75, 0.025, 0.8)), "linewidths": 0.5}
            rasterized = len(lines) > 2000
            axes.add_collection(LineCollection(list(lines), colors=shade, rasterized=rasterized, zorder=1, **look))


def _lines(stage: StageGraph, matrix: Tensor, target: int, at: list[float]) -> Floats:
    """Start and end points of the edges into a group, (edges, 2, 2)."""
    sources = stage.shape.sources[:target]
    source_x = np.repeat(at[:target], sources)
    source_y = np.concatenate([_heights(count) for count in sources])
    rows, columns = (index.cpu().numpy() for index in matrix.nonzero(as_tuple=True))
    starts = np.stack([source_x[columns], source_y[columns]], 1)
    ends = np.stack([np.full(len(rows), at[target]), _heights(stage.shape.outputs)[rows]], 1)
    return np.stack([starts, ends], 1)


def _heights(count: int) -> Floats:
    return (np.arange(count) + 0.5) / count


def _colour(stage: int) -> str:
    return COLOURS[stage % len(COLOURS)]


def _draw_degrees(axes: Any, edges: tuple[Tensor, ...], stage: int, colours: Theme) -> None:
    incoming = torch.cat([matrix.sum(1) for matrix in edges])
    outgoing = torch.zeros(edges[-1].shape[1], dtype=torch.long, device=incoming.device)
    for matrix in edges:
        outgoing[: matrix.shape[1]] += matrix.sum(0)
    into, out = (degrees[degrees > 0].cpu().numpy() for degrees in (incoming, outgoing))
    widest = max((int(degrees.max()) for degrees in (into, out) if len(degrees)), default=1)
    step = -(-widest // 40)
    bins = np.arange(0.5, widest + step + 0.5, step)
    means = [f"{degrees.mean():.1f}" if len(degrees) else "none" for degrees in (into, out)]
    axes.hist(into, bins=bins, color=_colour(stage), label=f"in, mean {means[0]}", alpha=0.45)
    axes.hist(out, bins=bins, color=colours.ink, label=f"out, mean {means[1]}", histtype="step", lw=1.3)
    axes.set_xlabel("edges per live node", fontsize=8)
    if stage == 0:
        axes.set_ylabel("nodes", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.locator_params(integer=True, nbins=6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(0, max(float(bins[-1]), 3.5) + 0.5)
    axes.legend(fontsize=7, frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))


register_picture("wiring", wiring_figure)
