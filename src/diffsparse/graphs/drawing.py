"""A learned graph drawn with dots and lines, compared with the map that was given."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from diffsparse.errors import SparsityError
from diffsparse.graphs.layout import plane_layout
from diffsparse.graphs.matrix import node_names, require_adjacency, require_map
from diffsparse.plot.picture import blank_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

WIDTH = 7.0
MOST_NAMES = 60
FEW_LINES = 300
THINNEST, THICKEST = 0.8, 3.6


@dataclass(frozen=True, kw_only=True)
class Style:
    """How the lines of one kind look."""

    colour: str
    """Of the line."""
    layer: float
    """Higher ones cover lower ones."""
    dashes: Literal["solid", "dashed"] = "solid"
    """Whether the line has gaps."""


ON_MAP = Style(colour="#1f6fb4", layer=2.2)
OFF_MAP = Style(colour="#e0651a", layer=2.1)
MISSED = Style(colour="#6b6b6b", layer=2.15, dashes="dashed")


def draw_graph(
    adjacency: Tensor,
    road_map: Tensor | None = None,
    *,
    names: Sequence[object] | None = None,
    positions: Tensor | None = None,
) -> "Figure":
    """The live edges of a learned graph; with a map, those on it in blue and the others in orange.

    Two nodes that read each other are joined by one line, as wide as the stronger of the two; links of the map that
    were not learned are dashed. Edges from a node to itself are not drawn. Names are written for up to 60 nodes.

    Args:
        adjacency: the learned graph, (nodes, nodes), not negative.
        road_map: the given graph, not zero where two nodes are linked; a link counts in both directions.
        names: one for each node.
        positions: (nodes, 2); chosen by `plane_layout` of the map, or of the learned graph, otherwise.

    Needs the `report` extra; `save_picture` writes the figure.
    """
    weights = require_adjacency(adjacency).cpu().float()
    labels = node_names(names, len(weights))
    given = weights if road_map is None else require_map(road_map, len(weights)).cpu()
    places = _places(positions, given)
    strength = torch.maximum(weights, weights.mT).triu(1)
    live = strength > 0
    figure = blank_figure(WIDTH, _height(places))
    axes = figure.subplots()
    if road_map is None:
        legend = [_draw_lines(axes, places, strength, live, ON_MAP, "learned")]
    else:
        linked = (given | given.mT).triu(1)
        legend = [
            _draw_lines(axes, places, strength, live & linked, ON_MAP, "learned, on the map"),
            _draw_lines(axes, places, strength, live & ~linked, OFF_MAP, "learned, off the map"),
            _draw_lines(axes, places, strength, linked & ~live, MISSED, "on the map, not learned"),
        ]
    _draw_nodes(axes, places, labels)
    axes.set_aspect("equal")
    axes.set_axis_off()
    figure.legend(handles=legend, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _places(positions: Tensor | None, edges: Tensor) -> Tensor:
    if positions is None:
        return plane_layout(edges)
    if not isinstance(positions, Tensor) or positions.shape != (len(edges), 2):
        shape = tuple(positions.shape) if isinstance(positions, Tensor) else type(positions).__name__
        raise SparsityError(f"positions must have shape ({len(edges)}, 2), got {shape}")
    return positions.detach().cpu().float()


def _height(places: Tensor) -> float:
    width, height = (places.amax(0) - places.amin(0)).tolist()
    return float(min(max(WIDTH * height / max(width, 1e-9), 4), 10))


def _draw_lines(axes: "Axes", places: Tensor, strength: Tensor, chosen: Tensor, style: Style, label: str) -> "Line2D":
    """One line for each `chosen` pair, as wide as it is strong; returns the entry for the legend, with their count."""
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    pairs = chosen.nonzero()
    # the root makes weak edges visible beside the strong ones
    relative = (strength[chosen] / strength.max().clamp(min=1e-30)).sqrt()
    lines = LineCollection(
        list(places[pairs].numpy()),
        colors=style.colour,
        linestyles=style.dashes,
        linewidths=(THINNEST + (THICKEST - THINNEST) * relative).tolist(),
        # a thousand lines must not become one blot
        alpha=min(1.0, max(0.15, FEW_LINES / max(len(pairs), 1))),
        zorder=style.layer,
    )
    axes.add_collection(lines)
    return Line2D([], [], color=style.colour, linestyle=style.dashes, linewidth=2, label=f"{label}: {len(pairs):,}")


def _draw_nodes(axes: "Axes", places: Tensor, labels: list[str]) -> None:
    from matplotlib.patheffects import withStroke

    few = len(labels) <= MOST_NAMES
    x, y = places.T.numpy()
    axes.scatter(x, y, s=40 if few else 14, c="white", edgecolors="#222222", linewidths=1.0, zorder=3)
    if few:
        for place, label in zip(places.tolist(), labels, strict=True):
            name = axes.annotate(label, place, xytext=(4, 4), textcoords="offset points", fontsize=7, zorder=4)
            name.set(path_effects=[withStroke(linewidth=2.5, foreground="white")], parse_math=False)
