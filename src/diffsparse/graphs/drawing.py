"""Pictures of a learned graph, as nodes and lines or as a matrix of colours, and where to put its nodes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsparse.errors import SparsityError
from diffsparse.graphs import adjacency as matrices
from diffsparse.graphs.adjacency import hop_counts, node_names, require_adjacency, require_map
from diffsparse.plot import register_picture
from diffsparse.plot.picture import blank_figure
from diffsparse.plot.theme import dressed, theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Floats = npt.NDArray[np.float64]

ROUNDS = 200
SETTLED = 1e-4
WIDTH = 7.0
MOST_NAMES = 60
MOST_TICKS = 50
FEW_LINES = 300
THINNEST, THICKEST = 0.8, 3.6


class Style(NamedTuple):
    """How lines of one kind look; those of a higher layer cover the others."""

    colour: str
    layer: float
    dashes: Literal["solid", "dashed"] = "solid"


ON_MAP = Style(colour="#1f6fb4", layer=2.2)
OFF_MAP = Style(colour="#e0651a", layer=2.1)
MISSED = Style(colour="#6b6b6b", layer=2.15, dashes="dashed")


def draw_graph(
    adjacency: Tensor,
    road_map: Tensor | None = None,
    *,
    names: Sequence[object] | None = None,
    positions: Tensor | None = None,
    dark: bool = False,
) -> "Figure":
    """The non-zero edges of a learned graph; with a map, those on the map in blue and the others in orange.

    Two nodes that read each other are joined by one line, as wide as the stronger edge. Links of the map that were not
    learned are dashed. Edges from a node to itself are not drawn. Up to 60 nodes get their names written.

    Args:
        adjacency: the learned graph, (nodes, nodes), non-negative.
        road_map: the given graph, non-zero where two nodes are linked; a link counts in both directions.
        names: one per node.
        positions: (nodes, 2); by default from `plane_layout` of the map, or of the learned graph without a map.
        dark: whether the picture is for dark paper.

    Needs the `report` extra; `save_picture` writes the figure. `ds.plot.graph` is this function.
    """
    weights = require_adjacency(adjacency).cpu().float()
    labels = node_names(names, len(weights))
    given = weights if road_map is None else require_map(road_map, len(weights)).cpu()
    places = plane_layout(given) if positions is None else _checked(positions, len(weights))
    strength = torch.maximum(weights, weights.mT).triu(1)
    live = strength > 0
    width, height = (places.amax(0) - places.amin(0)).tolist()
    figure = blank_figure(WIDTH, min(max(WIDTH * height / max(width, 1e-9), 4), 10))
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
    _draw_nodes(axes, places, labels, dark)
    axes.set_aspect("equal")
    axes.set_axis_off()
    figure.legend(handles=legend, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return dressed(figure, dark)


def draw_heat_map(
    adjacency: Tensor, road_map: Tensor | None = None, *, names: Sequence[object] | None = None
) -> "Figure":
    """The weights of a learned graph as colours, white where there is no edge; the map beside it, if given.

    Row i holds what node i reads. With a map, the nodes of both matrices are reordered so that linked nodes are close,
    and the map includes the diagonal, like :math:`M^1`. Up to 50 nodes get their names written. The arguments are those
    of `draw_graph`.
    """
    weights = require_adjacency(adjacency).cpu()
    labels = node_names(names, len(weights))
    title = f"learned: {matrices.nonzeros(weights):,} non-zeros"
    if road_map is None:
        figure = blank_figure(6, 5.2)
        _draw_weights(figure, figure.subplots(), weights, labels, title)
        return figure
    linked = require_map(road_map, len(weights)).cpu()
    order = row_order(linked)
    near = matrices.within_hops(linked)
    figure = blank_figure(11.2, 5.2)
    left, right = figure.subplots(1, 2)
    labels = [labels[node] for node in order]
    score = matrices.learned_relationship(weights, linked)
    _draw_weights(figure, left, weights[order][:, order], labels, f"{title}, {score:.1%} on the map")
    right.imshow(near[order][:, order].float().numpy(), cmap="Greys", vmin=0, vmax=1.4, interpolation="nearest")
    _label(right, labels, f"given map: {int(near.sum()):,} non-zeros with the diagonal")
    return figure


def _checked(positions: Tensor, nodes: int) -> Tensor:
    if not isinstance(positions, Tensor) or positions.shape != (nodes, 2):
        shape = tuple(positions.shape) if isinstance(positions, Tensor) else type(positions).__name__
        raise SparsityError(f"positions must have shape ({nodes}, 2), got {shape}")
    return positions.detach().cpu().float()


def _draw_lines(axes: "Axes", places: Tensor, strength: Tensor, chosen: Tensor, style: Style, label: str) -> "Line2D":
    """Draw one line per `chosen` pair, as wide as it is strong; return the entry of the legend, with their number."""
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    pairs = chosen.nonzero()
    # the square root keeps weak edges visible beside strong ones
    relative = (strength[chosen] / strength.max().clamp(min=1e-30)).sqrt()
    lines = LineCollection(
        list(places[pairs].numpy()),
        colors=style.colour,
        linestyles=style.dashes,
        linewidths=(THINNEST + (THICKEST - THINNEST) * relative).tolist(),
        # thousands of opaque lines would become one blot
        alpha=min(1.0, max(0.15, FEW_LINES / max(len(pairs), 1))),
        zorder=style.layer,
    )
    axes.add_collection(lines)
    return Line2D([], [], color=style.colour, linestyle=style.dashes, linewidth=2, label=f"{label}: {len(pairs):,}")


def _draw_nodes(axes: "Axes", places: Tensor, labels: list[str], dark: bool) -> None:
    from matplotlib.patheffects import withStroke

    few, (ink, paper) = len(labels) <= MOST_NAMES, theme(dark)[:2]
    x, y = places.T.numpy()
    axes.scatter(x, y, s=40 if few else 14, c=paper, edgecolors=ink, linewidths=1.0, zorder=3)
    if few:
        for place, label in zip(places.tolist(), labels, strict=True):
            name = axes.annotate(label, place, xytext=(4, 4), textcoords="offset points", fontsize=7, zorder=4)
            name.set(path_effects=[withStroke(linewidth=2.5, foreground=paper)], parse_math=False, color=ink)


def _draw_weights(figure: "Figure", axes: "Axes", weights: Tensor, labels: list[str], title: str) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import PowerNorm

    shown = np.ma.masked_equal(weights.double().numpy(), 0)
    # the square root keeps weak edges visible beside strong ones
    scale = PowerNorm(0.5, vmin=0, vmax=float(torch.clamp(weights.max(), min=1e-12)))
    colours = colormaps["viridis_r"].with_extremes(bad="white")
    image = axes.imshow(shown, cmap=colours, norm=scale, interpolation="nearest")
    _label(axes, labels, title)
    figure.colorbar(image, ax=axes, label="weight", shrink=0.8)


def _label(axes: "Axes", labels: list[str], title: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("read")
    axes.set_ylabel("reader")
    named = labels if len(labels) <= MOST_TICKS else []
    axes.set_xticks(range(len(named)), named, rotation=90, fontsize=6, parse_math=False)
    axes.set_yticks(range(len(named)), named, fontsize=6, parse_math=False)


def plane_layout(road_map: Tensor) -> Tensor:
    r"""Positions (nodes, 2), float32, whose distances are close to the hop counts on the map.

    Minimises the stress :math:`\sum_{ij} (\|x_i - x_j\| - d_{ij})^2 / d_{ij}^2` over the hop counts d by majorisation,
    starting from the classical scaling of d. The same map always gets the same positions. Parts of the map that are not
    connected are drawn a little apart.

    Example:
        >>> ends = plane_layout(torch.tensor([[0, 1, 0], [0, 0, 1], [0, 0, 0]]))[[0, 2]]
        >>> round((ends[0] - ends[1]).norm().item(), 3)
        2.0
    """
    wanted = _distances(require_map(road_map))
    if len(wanted) == 1:
        return torch.zeros(1, 2)
    apart = wanted + np.eye(len(wanted))
    pull = (1 - np.eye(len(wanted))) / apart**2
    inverse = np.linalg.pinv(_laplacian(pull))
    places = _classical_scaling(wanted)
    for _ in range(ROUNDS):
        lengths: Floats = np.linalg.norm(places[:, None] - places[None], axis=-1)
        moved = inverse @ (_laplacian(pull * wanted / np.maximum(lengths, 1e-9)) @ places)
        change = np.abs(moved - places).max()
        places = moved
        if change < SETTLED:
            break
    return torch.from_numpy(places).float()


def row_order(road_map: Tensor) -> list[int]:
    """All nodes in a row, linked nodes close together: ordered along the longest axis of the classical scaling."""
    along: Floats = _classical_scaling(_distances(require_map(road_map)))[:, 0]
    return [int(node) for node in np.argsort(along, kind="stable")]


def _distances(linked: Tensor) -> Floats:
    hops: Floats = hop_counts(linked).cpu().double().numpy()
    near = hops[np.isfinite(hops)]
    # half the width of the widest part plus a gap: visibly apart, but on the same page
    return np.where(np.isfinite(hops), hops, float(near.max()) / 2 + 2)


def _classical_scaling(distances: Floats) -> Floats:
    """Coordinates (nodes, 2) whose inner products fit the squared distances best, the longest axis first."""
    nodes = len(distances)
    centre = np.eye(nodes) - 1 / nodes
    values, vectors = np.linalg.eigh(-centre @ distances**2 @ centre / 2)
    longest = np.argsort(values)[::-1][:2]
    # an eigenvector may come out with either sign
    signs = np.where(vectors[np.abs(vectors[:, longest]).argmax(0), longest] < 0, -1.0, 1.0)
    places: Floats = vectors[:, longest] * signs * np.sqrt(np.maximum(values[longest], 0))
    return places


def _laplacian(weights: Floats) -> Floats:
    return np.diag(weights.sum(1)) - weights


register_picture("graph", draw_graph)
