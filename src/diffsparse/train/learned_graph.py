"""What a run says of the graph it has learned."""

from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.data.dataset import DataSet
from diffsparse.data.traffic import TrafficDataSet
from diffsparse.graphs import learned_relationship, nonzeros, within_hops, write_edge_list
from diffsparse.nn import SparseAdjacency
from diffsparse.train.folder import RunFolder


@torch.no_grad()
def learned_graph(model: nn.Module) -> Tensor | None:
    """The adjacency that `model` has learned; None if it learns no graph."""
    found = [module for module in model.modules() if isinstance(module, SparseAdjacency)]
    return found[0]().cpu() if found else None


def graph_figures(graph: Tensor, data: DataSet) -> dict[str, Any]:
    """Entries that are left and, where a map is known, how much of the graph lies on it."""
    figures: dict[str, Any] = {"nonzeros": nonzeros(graph), "entries": graph.numel()}
    if isinstance(data, TrafficDataSet):
        figures |= {f"lr{k}": learned_relationship(graph, data.adjacency, k) for k in (1, 2)}
        figures["map_entries"] = int(within_hops(data.adjacency).sum())
    return figures


def write_graph(graph: Tensor, data: DataSet, folder: RunFolder) -> None:
    """The edges as a table of source, target and weight."""
    names = data.node_names if isinstance(data, TrafficDataSet) else None
    write_edge_list(folder.file("graph.csv"), graph, names)
