"""What tests of networks look at."""

import torch
from torch import Tensor, nn

import diffsparse as ds


def batch_norms(model: nn.Module) -> tuple[int, int]:
    """Number of batch norms and of their channels."""
    norms = [module.num_features for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    return len(norms), sum(norms)


def maps(model: nn.Module, x: Tensor) -> dict[str, tuple[int, int]]:
    """Height of the input and the output of every convolution, by name, seen in a forward pass."""
    seen: dict[str, tuple[int, int]] = {}
    names = {module: name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}

    def look(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        seen[names[module]] = (args[0].shape[2], output.shape[2])

    handles = [module.register_forward_hook(look) for module in names]
    with torch.no_grad():
        model.eval()(x)
    for handle in handles:
        handle.remove()
    return seen


def strided(model: nn.Module, x: Tensor) -> list[str]:
    """Names of the convolutions that give smaller maps than they get."""
    return [name for name, (before, after) in maps(model, x).items() if after < before]


def normalised(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Batch norm in eval mode, from the formula."""
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    return (x - norm.running_mean.view(-1, 1, 1)) * scale.view(-1, 1, 1) + norm.bias.view(-1, 1, 1)


def gates(model: nn.Module) -> dict[str, Tensor]:
    """Which channels of each sparse batch norm are alive, by name."""
    layers = {name: m for name, m in model.named_modules() if isinstance(m, ds.SparseBatchNorm2d)}
    return {name: layer.gate().detach() != 0 for name, layer in layers.items()}


def zero_gates(model: nn.Module, rate: float, seed: int = 0) -> None:
    """Set every gate to random values, a share of `rate` of them to zero, and every b to random numbers."""
    generator = torch.Generator().manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, ds.SparseBatchNorm2d):
            n = layer.num_features
            values = 0.2 + torch.rand(n, generator=generator, dtype=torch.float64)
            values[torch.rand(n, generator=generator) < rate] = 0
            layer.gate = ds.SignedGate.from_values(values)
            layer.bias.data = torch.randn(n, generator=generator, dtype=torch.float64)
