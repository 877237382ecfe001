"""Random weights with zeros in them."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse import sparsify
from diffsparse.gates.gate import Gate
from diffsparse.nn import SparseBatchNorm


@torch.no_grad()
def randomise(made: nn.Module, cut: str | None, generator: torch.Generator) -> None:
    """Fill all but gates with random numbers; zeros by `cut` in layers with weights, by rate in batch norms."""
    set_before = {id(p) for module in made.modules() if isinstance(module, Gate) for p in module.parameters()}

    def some(shape: Any, rate: float) -> Tensor:
        return torch.rand(shape, generator=generator) < rate

    for parameter in made.parameters():
        if id(parameter) in set_before:
            continue
        spread = 1.0 / math.sqrt(max(parameter[0].numel(), 1)) if parameter.dim() > 1 else 0.5
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * spread)
    for module in made.modules():
        if isinstance(module, nn.modules.conv._ConvNd | nn.Linear) and cut is not None:
            weight = module.weight
            rates = {"filters": (0.5, 0, 0), "inputs": (0, 0.5, 0), "entries": (0, 0, 0.5), "all": (0.3, 0.3, 0.3)}[cut]
            weight[some(weight.shape[0], rates[0])] = 0
            weight[:, some(weight.shape[1], rates[1])] = 0
            weight[some(weight.shape, rates[2])] = 0
            if module.bias is not None and cut == "filters":
                module.bias[some(module.bias.shape, 0.5)] = 0
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            _randomise_norm(module, some, generator)
    for module in made.modules():
        if hasattr(module, "die"):
            module.die(generator)


def _randomise_norm(norm: Any, some: Callable[..., Tensor], generator: torch.Generator) -> None:
    if norm.running_mean is not None:
        norm.running_mean.copy_(torch.randn(norm.num_features, generator=generator) * 0.5)
        norm.running_var.copy_(torch.rand(norm.num_features, generator=generator) + 0.5)
    if norm.weight is not None:
        dropped = some(norm.num_features, norm.rate)
        norm.weight.add_(norm.weight.sign() * 0.3)[dropped] = 0
        norm.bias[dropped & (torch.tensor(norm.sparse) | ~some(dropped.shape, 0.5 * norm.shifts))] = 0


def sparsify_chosen(net: nn.Module) -> None:
    """Make the batch norms that were drawn sparse so."""
    chosen = [module for module in net.modules() if getattr(module, "sparse", False) is True]
    if not chosen:
        return
    sparsify(net, only=lambda _, module: any(module is one for one in chosen))
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, SparseBatchNorm) and module.bias is not None:
                # b of a dropped channel has no effect, whatever it is
                module.bias.copy_(torch.where(module.gate() == 0, torch.tensor(0.7, dtype=torch.float64), module.bias))
