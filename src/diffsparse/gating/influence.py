"""How much the outputs of the whole network depend on each entry: derivatives of random sums of the outputs."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError
from diffsparse.example import Example, tensors_in
from diffsparse.gating.sites import Site
from diffsparse.undisturbed import undisturbed

DRAWS = 32
"""Random sums of the outputs: the importance of an entry is known to about an eighth of it."""


def with_influence(model: nn.Module, example: Example, sites: Iterable[Site]) -> list[Site]:
    r"""The sites, with importance measured at the outputs of the network instead of at those of the layer.

    If an entry is multiplied by g, with g = 1 now, its importance is the size of the derivative of all outputs y on the
    example. Random signs v give the same in the mean, without a derivative for each output:

    .. math:: I_i^2 = \sum_o \Bigl(\frac{\partial y_o}{\partial g_i}\Bigr)^2
              = \mathbb{E}_v \Bigl(\frac{\partial\, v^\top y}{\partial g_i}\Bigr)^2

    Sites stay as they are if the model computes without gradients, or if some layer has none.
    """
    found = list(sites)
    weights = [_stored(model, site) for site in found]
    wanted = {id(weight) for weight in weights}
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        with undisturbed(model, device=example.device), torch.enable_grad():
            for parameter, _ in flags:
                parameter.requires_grad_(id(parameter) in wanted)
            squares = _squares(found, weights, example.run(model))
    except (RuntimeError, SparsityError):
        # it ran before, so what fails is the derivative: code that writes in place, or that has none
        return found
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
    if not all(bool(square.isfinite().all() and square.sum() > 0) for square in squares):
        return found
    return [replace(site, importance=square.sqrt()) for site, square in zip(found, squares, strict=True)]


def _squares(sites: list[Site], weights: list[Tensor], output: Any) -> list[Tensor]:
    """The mean square of the derivative for each entry of each site."""
    outputs = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
    squares, draw = [torch.zeros_like(site.importance) for site in sites], torch.Generator().manual_seed(0)
    for _ in range(DRAWS if outputs else 0):
        signs = [_signs(output, draw) for output in outputs]
        slopes = torch.autograd.grad(outputs, weights, signs, retain_graph=True, allow_unused=True)
        for square, site, weight, slope in zip(squares, sites, weights, slopes, strict=True):
            square += _by_entry(site, weight, slope).square().to(square) / DRAWS
    return squares


def _stored(model: nn.Module, site: Site) -> Tensor:
    weight = model.get_submodule(site.layer)._parameters["weight"]
    assert weight is not None
    return weight


def _signs(like: Tensor, draw: torch.Generator) -> Tensor:
    return (torch.randint(2, like.shape, generator=draw) * 2 - 1).to(like)


def _by_entry(site: Site, weight: Tensor, slope: Tensor | None) -> Tensor:
    """The derivative for each entry, from that for the weights that it multiplies."""
    product = torch.zeros_like(weight) if slope is None else slope * weight.detach()
    if site.side == "outputs":
        return product.sum().view(1)
    return product.double().movedim(site.input_dim, 0).flatten(1).sum(1).view(-1, site.block).sum(1)
