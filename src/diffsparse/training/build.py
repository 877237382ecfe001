"""The network of a recipe, from its name or from the user's own class, made for its data."""

from typing import Any

import torch
from torch import nn

from diffsparse.data.dataset import DataSet
from diffsparse.errors import SparsityError
from diffsparse.graphs import within_hops
from diffsparse.models.factory import make_named, parse_arguments
from diffsparse.nn import SparseAdjacency
from diffsparse.traffic.data import TrafficDataSet
from diffsparse.traffic.model import TrafficGCN
from diffsparse.training.config import Method, Recipe


def build_model(name: str, arguments: str, data: DataSet, seed: int, method: Method = "plain") -> nn.Module:
    """A fresh network for `data`, its weights drawn from `seed`; raises if it does not fit the data.

    What it is told besides `arguments`: a network of this package, how many outputs and input channels there are; a
    traffic network, the scale of speeds and what kind of graph the method wants.
    """
    torch.manual_seed(seed)
    keywords = parse_arguments(arguments)
    if method == "given-map" and name != "traffic-gcn":
        raise SparsityError(f"method given-map is about the graph of traffic-gcn, which {name} has not")
    if name == "traffic-gcn":
        if not isinstance(data, TrafficDataSet):
            raise SparsityError(f"traffic-gcn forecasts speeds on roads, which {data.name} does not hold")
        if unknown := ", ".join(sorted(keywords.keys() - {"width", "blocks"})):
            raise SparsityError(
                f"the arguments of traffic-gcn are width and blocks, got {unknown}; the data says the rest"
            )
        model: nn.Module = TrafficGCN(**_graph_keywords(data, method), **keywords)
    elif ":" not in name:
        model = make_named(name, {"num_classes": data.num_outputs, "in_channels": data.input_shape[0]} | keywords)
    else:
        model = make_named(name, keywords)
    _check_fit(model, name, data)
    return model


def check_forecast(recipe: Recipe) -> None:
    """Raise if an option means nothing to a forecast of speeds."""
    settings = recipe.sparsifying
    if recipe.model == "traffic-gcn" and settings.method == "ds" and settings.norm != "lp":
        raise SparsityError(
            f"norm {settings.norm} is the same for all graphs whose rows sum to 1, and cannot choose one; the norm of "
            "traffic-gcn is lp (docs/graphs.md has a whole command)"
        )
    if recipe.distillation.teacher is not None or recipe.optimisation.label_smoothing:
        raise SparsityError(f"a teacher and label_smoothing are about classes, of which {recipe.data} has none")


def _graph_keywords(data: TrafficDataSet, method: Method) -> dict[str, Any]:
    nodes = data.num_outputs
    # the paper's baselines: I reads the given map, II every pair of nodes; neither has thresholds
    mask = within_hops(data.adjacency) if method == "given-map" else None
    adjacency = SparseAdjacency(nodes, mask=mask, threshold=method == "ds")
    return {
        "nodes": nodes,
        "history": data.input_shape[0],
        "adjacency": adjacency,
        "mean": data.mean,
        "std": data.std,
    }


@torch.no_grad()
def _check_fit(model: nn.Module, name: str, data: DataSet) -> None:
    training = model.training
    try:
        outputs = model.eval()(torch.zeros(2, *data.input_shape))
    except (RuntimeError, ValueError) as error:
        raise SparsityError(f"{name} does not run on inputs of shape {data.input_shape}: {error}") from error
    finally:
        model.train(training)
    shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if shape != (2, data.num_outputs):
        raise SparsityError(f"{name} gives {shape} for 2 inputs of {data.name}, which needs (2, {data.num_outputs})")
