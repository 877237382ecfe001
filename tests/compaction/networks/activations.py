"""Activations as modules, functions, methods and arithmetic."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.compaction.networks.block import Block


def _expneg(_: Block, x: Tensor) -> Tensor:
    return torch.exp(-x).clamp(max=4.0)


def _in_place(_: Block, x: Tensor) -> Tensor:
    x *= 0.7
    return x.add_(0.3).relu_()


ACTIVATIONS: dict[str, Callable[..., Any] | None] = {
    **dict.fromkeys(["ReLU", "ReLUInPlace", "GELU", "SiLU", "Sigmoid", "Softplus", "Hardswish", "PReLU", "PReLUEach"]),
    "none": lambda _, x: x,
    "relu": lambda _, x: F.relu(x),
    "relu2": lambda _, x: torch.relu(x),
    "relu_": lambda _, x: x.relu_(),
    "relu inplace": lambda _, x: F.relu(x, inplace=True),
    "leaky": lambda _, x: F.leaky_relu(x, 0.1),
    "tanh": lambda _, x: x.tanh(),
    "sigmoid": lambda _, x: torch.sigmoid(x),
    "hardsigmoid": lambda _, x: F.hardsigmoid(x),
    "softplus": lambda _, x: F.softplus(x),
    "expneg": _expneg,
    "cos": lambda _, x: torch.cos(x),
    "swish": lambda _, x: x * torch.sigmoid(x),
    "one minus": lambda _, x: 1 - x,
    "plus": lambda _, x: x + 0.5,
    "in place": _in_place,
    "ratio": lambda _, x: 2 / (1 + x * x),
    "square": lambda _, x: (x**2).clamp(max=5.0),
    "where": lambda _, x: torch.where(x > 0, x, 0.1 * x + 0.2),
    "fill": lambda _, x: x.masked_fill(x < 0, 0.5),
    "maximum": lambda _, x: torch.maximum(x, 0.5 * x - 0.25),
    "softmax": lambda _, x: torch.softmax(x, dim=1),
    "normalize": lambda _, x: F.normalize(x, dim=1, eps=0.1),
}


def activation(name: str) -> nn.Module:
    """The activation of that name, as a module."""
    run = ACTIVATIONS[name]
    if run is not None:
        return Block(run)
    if name == "ReLUInPlace":
        return nn.ReLU(inplace=True)
    module: nn.Module = getattr(nn, name.removesuffix("Each"))()
    return module
