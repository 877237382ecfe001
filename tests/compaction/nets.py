"""Small nets and what tests do to them."""

import torch
from torch import Tensor, nn


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random statistics, scales and shifts in every batch norm, in float64 and eval mode."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            n = module.num_features
            module.running_mean = torch.randn(n, generator=generator)
            module.running_var = 0.5 + torch.rand(n, generator=generator)
            if module.weight is not None:
                module.weight.data = torch.randn(n, generator=generator)
                module.bias.data = torch.randn(n, generator=generator)
    return model.double().eval()


def same(a: nn.Module, b: nn.Module, x: Tensor) -> bool:
    """Whether two models agree on `x` up to float64 rounding."""
    with torch.no_grad():
        expected, got = a(x), b(x)
    return torch.allclose(expected, got, rtol=0, atol=1e-9 * max(1.0, float(expected.abs().max())))
