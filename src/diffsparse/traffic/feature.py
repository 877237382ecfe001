"""What traffic forecasting adds to the rest of the package; imported when names are looked up."""

import re
from typing import Any

from torch import nn

from diffsparse.data import DataRequest, register_data
from diffsparse.data.dataset import DataSet
from diffsparse.errors import SparsityError
from diffsparse.graphs import within_hops
from diffsparse.methods import Method, Sparsifying, register_method
from diffsparse.models import Family, register_family
from diffsparse.models.factory import make_named
from diffsparse.nn import SparseAdjacency
from diffsparse.traffic.data import TrafficDataSet
from diffsparse.traffic.forecast import Forecast
from diffsparse.traffic.model import TrafficGCN
from diffsparse.traffic.report import GraphReport
from diffsparse.traffic.sources import SYNTHETIC, TRAFFIC_NAMES, open_traffic
from diffsparse.training import register_report, register_task
from diffsparse.training.config import Recipe
from diffsparse.training.task import Objective, Task

MODEL = "traffic-gcn"


class Forecasting(Task):
    """The next speed on every road from the past few."""

    def check(self, recipe: Recipe) -> None:
        settings = recipe.sparsifying
        if recipe.model == MODEL and settings.method == "ds" and settings.norm != "lp":
            raise SparsityError(
                f"norm {settings.norm} is the same for all graphs whose rows sum to 1, and cannot choose one; the norm "
                f"of {MODEL} is lp (docs/graphs.md has a whole command)"
            )
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

    def prepare(self, model: nn.Module) -> nn.Module:
        if not isinstance(model, TrafficGCN):
            raise SparsityError(f"method {self.name} is about the graph of {MODEL}; {type(model).__name__} has none")
        return model


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
