"""Networks of recipes, built and counted without their data."""

import json
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffsparse.measuring import measure
from diffsparse.models.factory import make_named, parse_arguments
from diffsparse.recipes.book import DataFacts
from diffsparse.training import Recipe
from diffsparse.undisturbed import undisturbed

FLOAT = 4
"""Bytes of a number."""


@dataclass(frozen=True, kw_only=True)
class NetworkCost:
    """What one input costs in training."""

    macs: int
    params: int
    activation_bytes: int
    """Outputs of all layers, which the backward pass needs."""


def whole_network(recipe: Recipe, data: DataFacts) -> tuple[nn.Module, Tensor]:
    """The network of a recipe before anything is removed, and an input for it."""
    side = recipe.image_size
    shape = data.shape if side is None else (*data.shape[:-2], side, side)
    given = parse_arguments(recipe.arguments)
    if data.network is not None:
        return make_named(data.network, given | data.arguments), torch.zeros(1, *shape)
    own = {"num_classes": data.outputs, "in_channels": shape[0]}
    return make_named(recipe.model, own | given), torch.zeros(1, *shape)


_counted: dict[str, NetworkCost] = {}


def network_cost(recipe: Recipe, data: DataFacts) -> NetworkCost:
    """What one input of the network of `recipe` costs; counted once for each network."""
    key = json.dumps([recipe.model, recipe.arguments, recipe.image_size, data.shape, data.outputs])
    if key not in _counted:
        model, example = whole_network(recipe, data)
        report = measure(model, example, latency=False)
        cost = NetworkCost(macs=report.macs, params=report.params, activation_bytes=_activations(model, example))
        _counted[key] = cost
    return _counted[key]


def _activations(model: nn.Module, example: Tensor) -> int:
    """Bytes of the outputs of all modules without children."""
    found: list[int] = []

    def note(_module: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            found.append(output.numel() * FLOAT)

    leaves = [module for module in model.modules() if not list(module.children())]
    hooks = [module.register_forward_hook(note) for module in leaves]
    try:
        with torch.no_grad(), undisturbed(model, device=torch.device("cpu")):
            model(example)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(found)
