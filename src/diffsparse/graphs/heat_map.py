"""A learned graph as a matrix of colours, beside the map that was given."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from diffsparse.graphs.layout import row_order
from diffsparse.graphs.matrix import node_names, require_adjacency, require_map
from diffsparse.graphs.scores import learned_relationship, nonzeros, within_hops
from diffsparse.plot.picture import blank_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NAMES = 50


def draw_heat_map(
    adjacency: Tensor, road_map: Tensor | None = None, *, names: Sequence[object] | None = None
) -> "Figure":
    """The weights of a learned graph as colours, white where there is no edge; beside it the map, if one is given.

    Row i holds what node i reads. With a map, both matrices have their nodes in the same new order that puts linked
    nodes near each other, and the map has its diagonal, as :math:`M^1` has. Names are written for up to 50 nodes.

    Args:
        adjacency: the learned graph, (nodes, nodes), not negative.
        road_map: the given graph, not zero where two nodes are linked.
        names: one for each node.

    Needs the `report` extra; `save_picture` writes the figure.
    """
    weights = require_adjacency(adjacency).cpu()
    labels = node_names(names, len(weights))
    title = f"learned: {nonzeros(weights):,} non-zeros"
    if road_map is None:
        figure = blank_figure(6, 5.2)
        _draw_weights(figure, figure.subplots(), weights, labels, title)
        return figure
    linked = require_map(road_map, len(weights)).cpu()
    order = row_order(linked)
    near = within_hops(linked)
    figure = blank_figure(11.2, 5.2)
    left, right = figure.subplots(1, 2)
    labels = [labels[node] for node in order]
    score = learned_relationship(weights, linked)
    _draw_weights(figure, left, weights[order][:, order], labels, f"{title}, {score:.1%} on the map")
    right.imshow(near[order][:, order].float().numpy(), cmap="Greys", vmin=0, vmax=1.4, interpolation="nearest")
    _label(right, labels, f"given map: {int(near.sum()):,} non-zeros with the diagonal")
    return figure


def _draw_weights(figure: "Figure", axes: "Axes", weights: Tensor, labels: list[str], title: str) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import PowerNorm

    shown = np.ma.masked_equal(weights.double().numpy(), 0)
    # the root makes weak edges visible beside the strong ones
    scale = PowerNorm(0.5, vmin=0, vmax=float(torch.clamp(weights.max(), min=1e-12)))
    colours = colormaps["viridis_r"].with_extremes(bad="white")
    image = axes.imshow(shown, cmap=colours, norm=scale, interpolation="nearest")
    _label(axes, labels, title)
    figure.colorbar(image, ax=axes, label="weight", shrink=0.8)


def _label(axes: "Axes", labels: list[str], title: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("read")
    axes.set_ylabel("reader")
    named = labels if len(labels) <= MOST_NAMES else []
    axes.set_xticks(range(len(named)), named, rotation=90, fontsize=6, parse_math=False)
    axes.set_yticks(range(len(named)), named, fontsize=6, parse_math=False)
