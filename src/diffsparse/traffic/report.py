"""What a run reports of the graph it has learned."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.data.dataset import DataSet
from diffsparse.errors import SparsityError
from diffsparse.graphs import draw_graph, draw_heat_map, learned_relationship, nonzeros, within_hops, write_edge_list
from diffsparse.nn import SparseAdjacency
from diffsparse.plot.picture import save_formats
from diffsparse.traffic.data import TrafficDataSet
from diffsparse.training.report import RunReport

# More edges would take long to draw and merge into one blot.
MOST_DRAWN = 10_000


@torch.no_grad()
def learned_graph(model: nn.Module) -> Tensor | None:
    """The adjacency that `model` has learned; None if it learns no graph."""
    found = [module for module in model.modules() if isinstance(module, SparseAdjacency)]
    return found[0]().cpu() if found else None


def graph_figures(graph: Tensor, data: DataSet) -> dict[str, Any]:
    """The entries that are left and, if a map is known, how much of the graph lies on it.

    "links" counts the links of the map in each direction, "links_found" those that are in the graph.
    """
    figures: dict[str, Any] = {"nonzeros": nonzeros(graph), "entries": graph.numel()}
    if isinstance(data, TrafficDataSet):
        figures |= {f"lr{k}": learned_relationship(graph, data.adjacency, k) for k in (1, 2)}
        near = within_hops(data.adjacency)
        links = near & ~torch.eye(len(near), dtype=torch.bool)
        figures["map_entries"] = int(near.sum())
        figures |= {"links": int(links.sum()), "links_found": int((links & (graph > 0)).sum())}
    return figures


def write_graph(graph: Tensor, data: DataSet, folder: Path, say: Callable[[str], None]) -> None:
    """Write `graph.csv` and, as SVG and PNG, the pictures `graph` (the matrix, beside the map if known) and `roads`.

    Tell the user why if a picture cannot be drawn.
    """
    road_map, names, positions = None, None, None
    if isinstance(data, TrafficDataSet):
        road_map, names, positions = data.adjacency, data.node_names, data.positions
    write_edge_list(folder / "graph.csv", graph, names)
    try:
        save_formats(draw_heat_map(graph, road_map, names=names), folder, "graph")
        if nonzeros(graph) > MOST_DRAWN:
            say(f"no roads.svg: {nonzeros(graph):,} edges are too many to tell apart")
        else:
            save_formats(draw_graph(graph, road_map, names=names, positions=positions), folder, "roads")
    except SparsityError as error:
        say(f"no pictures of the graph: {error}")


class GraphReport(RunReport):
    """How many entries the learned graph has and how many are on the map; its edges as a table, and pictures."""

    caption = "LR: share of a graph's weights that lies within one and within two links on the map"

    def figures(self, model: nn.Module, data: DataSet, say: Callable[[str], None]) -> dict[str, Any] | None:
        graph = learned_graph(model)
        return None if graph is None else graph_figures(graph, data)

    def write(self, model: nn.Module, data: DataSet, folder: Path, say: Callable[[str], None]) -> None:
        graph = learned_graph(model)
        assert graph is not None
        write_graph(graph, data, folder, say)

    def columns(self, result: dict[str, Any], cells: dict[str, str]) -> dict[str, str]:
        graph = result["graph"]
        kept = f"{graph['nonzeros']:,} ({graph['nonzeros'] / graph['entries']:.1%})"
        own = {"entries": kept} | {f"LR {k}": f"{graph[f'lr{k}']:.3f}" for k in (1, 2) if f"lr{k}" in graph}
        usual = {name: text for name, text in cells.items() if name not in {"zeros", "MACs", "params", "file kB"}}
        return usual | own
