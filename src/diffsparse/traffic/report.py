"""What a run says of the graph it has learned."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from diffsparse.data.dataset import DataSet
from diffsparse.errors import SparsityError
from diffsparse.graphs import (
    draw_graph,
    draw_heat_map,
    learned_relationship,
    nonzeros,
    save_picture,
    within_hops,
    write_edge_list,
)
from diffsparse.nn import SparseAdjacency
from diffsparse.plot.picture import FORMATS
from diffsparse.traffic.data import TrafficDataSet
from diffsparse.training.folder import RunFolder
from diffsparse.training.watcher import Watcher

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_DRAWN = 10_000
"""Edges that are drawn as lines; more take long, and one sees nothing but a blot."""


@torch.no_grad()
def learned_graph(model: nn.Module) -> Tensor | None:
    """The adjacency that `model` has learned; None if it learns no graph."""
    found = [module for module in model.modules() if isinstance(module, SparseAdjacency)]
    return found[0]().cpu() if found else None


def graph_figures(graph: Tensor, data: DataSet) -> dict[str, Any]:
    """Entries that are left and, where a map is known, how much of the graph lies on it.

    "links" counts the links of the map in each direction, "links_found" those of them that are in the graph.
    """
    figures: dict[str, Any] = {"nonzeros": nonzeros(graph), "entries": graph.numel()}
    if isinstance(data, TrafficDataSet):
        figures |= {f"lr{k}": learned_relationship(graph, data.adjacency, k) for k in (1, 2)}
        near = within_hops(data.adjacency)
        links = near & ~torch.eye(len(near), dtype=torch.bool)
        figures["map_entries"] = int(near.sum())
        figures |= {"links": int(links.sum()), "links_found": int((links & (graph > 0)).sum())}
    return figures


def write_graph(graph: Tensor, data: DataSet, folder: RunFolder) -> None:
    """The edges as a table of source, target and weight."""
    _, names, _ = _known_map(data)
    write_edge_list(folder.file("graph.csv"), graph, names)


def draw_learned_graph(graph: Tensor, data: DataSet, folder: RunFolder, watcher: Watcher) -> None:
    """Pictures as SVG and PNG: `graph`, the matrix, beside the map where one is known; `roads`, nodes and lines.

    Only a word to the watcher where there is nothing to draw with, or too much to see.
    """
    road_map, names, positions = _known_map(data)
    try:
        save_formats(draw_heat_map(graph, road_map, names=names), folder, "graph")
        if nonzeros(graph) > MOST_DRAWN:
            watcher.say(f"no roads.svg: {nonzeros(graph):,} edges are too many to tell apart")
        else:
            save_formats(draw_graph(graph, road_map, names=names, positions=positions), folder, "roads")
    except SparsityError as error:
        watcher.say(f"no pictures of the graph: {error}")


def _known_map(data: DataSet) -> tuple[Tensor | None, tuple[str, ...] | None, Tensor | None]:
    """Links, names and places of the nodes, as far as they are known."""
    if isinstance(data, TrafficDataSet):
        return data.adjacency, data.node_names, data.positions
    return None, None, None


def save_formats(figure: "Figure", folder: RunFolder, name: str) -> None:
    """Write one picture in every format, beside the other files of a run."""
    for ending in FORMATS:
        save_picture(folder.file(f"{name}{ending}"), figure)
