"""Scales of batch norms that gates have made small become about one again, and the layers behind them make up for it.

Behind a small scale a layer learns slowly: what it reads is small, so are its gradients, and its weights have grown.
As batch norm, activation and layer are in proportion to the scale, the network computes the same with the scale times a
factor and the weights divided by it. Factors are powers of two, which cost no bit.
"""

import math
from collections.abc import Collection

import torch
from torch import Tensor, nn

from diffsparse.budget.coupled import Powers, Readers, coupled, multiply
from diffsparse.compaction.graph import Node
from diffsparse.compaction.rules.base import argument
from diffsparse.example import Example

MOST = 4.0
"""The largest factor: what is almost dead would change with every step if its weights were that much smaller."""


@torch.no_grad()
def to_unit_scales(model: nn.Module, example: Example, norms: Collection[str]) -> dict[str, float]:
    """Multiply scales and biases of these batch norms of `model`, as far as layers behind them can make up for it.

    Returns:
        What each parameter was multiplied by, by name.
    """
    parameters = dict(model.named_parameters())
    factors: dict[str, float] = {}
    is_norm = lambda node: node.op == "batch_norm" and node.call.name in norms  # noqa: E731
    for powers in coupled(model, example, is_norm, _with_weights_behind):
        if not parameters.keys() >= powers.keys():
            continue
        factor = _factor(parameters[next(iter(powers))])
        changes = {name: factor**power for name, power in powers.items()}
        if factor != 1 and all(_is_exact(parameters[name], by) for name, by in changes.items()):
            factors |= changes
            multiply(model, changes)
    return factors


def _with_weights_behind(node: Node, readers: Readers) -> Powers | None:
    """The scale of a batch norm, first, its bias, and the weights that make up for them."""
    scale, bias = (argument(node, at, name) for at, name in ((3, "weight"), (4, "bias")))
    own, weights = readers.own([scale, *([] if bias is None else [bias])]), readers.weights(node.output)
    return None if own is None or weights is None else dict.fromkeys(own, 1) | dict.fromkeys(weights, -1)


def _factor(scales: Tensor) -> float:
    """One over the mean size, as a power of two; 1 if it is not small, and never more than `MOST`."""
    size = scales.detach().abs().double().mean().item()
    return min(max(2.0 ** -round(math.log2(size)), 1.0), MOST) if 0 < size < math.inf else 1.0


def _is_exact(parameter: Tensor, factor: float) -> bool:
    multiplied = parameter * factor
    return bool(multiplied.isfinite().all()) and torch.equal(multiplied / factor, parameter)
