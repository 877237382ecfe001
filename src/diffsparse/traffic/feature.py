"""What traffic forecasting adds to the package (data, task, method, report); an entry point names this module."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.data import DataRequest, register_data
from diffsparse.data.dataset import DataSet
from diffsparse.errors import SparsityError
from diffsparse.graphs import draw_graph, draw_heat_map, learned_relationship, nonzeros, within_hops, write_edge_list
from diffsparse.methods import Method, Sparsifying, register_method
from diffsparse.methods.method import Sample
from diffsparse.models import Family, register_family
from diffsparse.models.factory import make_named
from diffsparse.nn import SparseAdjacency
from diffsparse.plot.picture import save_formats
from diffsparse.traffic.data import TrafficDataSet
from diffsparse.traffic.forecast import Forecast
from diffsparse.traffic.model import TrafficGCN
from diffsparse.traffic.sources import SYNTHETIC, TRAFFIC_NAMES, open_traffic
from diffsparse.training import register_report, register_task
from diffsparse.training.config import Recipe
from diffsparse.training.report import RunReport
from diffsparse.training.task import Objective, Task

MODEL = "traffic-gcn"
# More edges would take long to draw and merge into one blot.
MOST_DRAWN = 10_000


class Forecasting(Task):
    """The next speed on every road from the past few."""

    def check(self, recipe: Recipe) -> None:
        settings = recipe.sparsifying
        if recipe.model == MODEL and settings.method == "ds" and settings.norm != "lp":
            useless = f"norm {settings.norm} is the same for all graphs whose rows sum to 1, and cannot choose one"
            raise SparsityError(f"{useless}; the norm of {MODEL} is lp (docs/graphs.md has a whole command)")
        if recipe.distillation.teacher is not None or recipe.optimisation.label_smoothing:
            raise SparsityError(f"a teacher and label_smoothing are about classes, and {recipe.data} has none")

    def build(self, name: str, keywords: dict[str, Any], data: DataSet, settings: Sparsifying) -> nn.Module:
        """traffic-gcn is told the roads and the scale of their speeds, and gets the graph that the method wants."""
        if name != MODEL:
            return make_named(name, keywords)
        if not isinstance(data, TrafficDataSet):
            raise SparsityError(f"{MODEL} forecasts speeds on roads, which {data.name} does not hold")
        if unknown := ", ".join(sorted(keywords.keys() - {"width", "blocks"})):
            raise SparsityError(f"the arguments of {MODEL} are width and blocks, got {unknown}; the data says the rest")
        nodes = data.num_outputs
        # the paper's baselines: I reads the given map, II every pair of nodes; neither has thresholds
        mask = within_hops(data.adjacency) if settings.method == GivenMap.name else None
        adjacency = SparseAdjacency(nodes, mask=mask, threshold=settings.method == "ds")
        known = {"nodes": nodes, "history": data.input_shape[0], "mean": data.mean, "std": data.std}
        return TrafficGCN(adjacency=adjacency, **known, **keywords)  # type: ignore[arg-type]

    def objective(self, recipe: Recipe, teacher: nn.Module | None) -> Objective:
        return Forecast()


class GivenMap(Method):
    """The paper's baseline I: plain training on the true map."""

    name = "given-map"

    def prepare(self, model: nn.Module, sample: Sample | None = None) -> nn.Module:
        if not isinstance(model, TrafficGCN):
            raise SparsityError(f"method {self.name} is about the graph of {MODEL}; {type(model).__name__} has none")
        return model


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
    """Write `graph.csv` and, as SVG and PNG, the pictures `graph` (the matrix, beside the map if known) and `roads`."""
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

    def columns(self, result: Mapping[str, Any], cells: dict[str, str]) -> dict[str, str]:
        graph = result["graph"]
        kept = f"{graph['nonzeros']:,} ({graph['nonzeros'] / graph['entries']:.1%})"
        own = {"entries": kept} | {f"LR {k}": f"{graph[f'lr{k}']:.3f}" for k in (1, 2) if f"lr{k}" in graph}
        usual = {name: text for name, text in cells.items() if name not in {"zeros", "MACs", "params", "file kB"}}
        return usual | own


def _open(request: DataRequest) -> TrafficDataSet:
    request.refuse_download()
    request.check_size(None)
    return open_traffic(request.name, None if request.name == SYNTHETIC else request.folder())


def _needs_roads(match: re.Match[str], num_classes: int, in_channels: int) -> nn.Module:
    raise SparsityError(f"{MODEL} forecasts speeds on roads: train it on traffic data, such as --data {SYNTHETIC}")


for _name in TRAFFIC_NAMES:
    register_data(_name, _open)
register_family(Family(grammar=MODEL, pattern=MODEL, build=_needs_roads, examples=()))
register_method(GivenMap.name, GivenMap)
register_task("forecasting", Forecasting())
register_report("graph", GraphReport())
