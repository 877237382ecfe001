"""Weights in front of batch norms become smaller: such a network learns faster, and computes the same.

A batch norm takes out the scale of the weights in front of it, so weights can only turn. The larger they are, the less
a step turns them, and steps of a whole run have made them large. A chain that has just lost most of its channels has
much to learn in the steps that are left.
"""

import torch
from torch import nn

from diffsparse.budget.coupled import LAYERS, Powers, Readers, coupled, multiply
from diffsparse.compaction.graph import Node
from diffsparse.compaction.rules.base import argument
from diffsparse.example import Example

FACTOR = 0.5
"""What weights are multiplied by; with SGD, a step turns them by four times as much."""


@torch.no_grad()
def halve_free_weights(model: nn.Module, example: Example) -> dict[str, float]:
    """Halve the weights of layers that nothing but batch norms reads; the statistics of these norms follow.

    Outputs are the same but for what norms add to variances, which counts only where a variance is next to zero.

    Returns:
        What each parameter and buffer was multiplied by, by name.
    """
    names = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    # decided by the graph alone: statistics differ between processes
    found = coupled(model, example, lambda node: node.op in LAYERS, _with_statistics_behind)
    factors = {n: FACTOR**power for powers in found if names >= powers.keys() for n, power in powers.items()}
    multiply(model, factors)
    return factors


def _with_statistics_behind(node: Node, readers: Readers) -> Powers | None:
    """Weight and bias of a layer, and the statistics of the batch norms that read its output."""
    norms = readers.of(node.output)
    if not norms or any(norm.op != "batch_norm" or norm.args[:1] != (node.output,) for norm in norms):
        return None
    bias = argument(node, 2, "bias")
    own = readers.own([argument(node, 1, "weight"), *([] if bias is None else [bias])])
    means, variances = (
        readers.own(argument(norm, at, name) for norm in norms)
        for at, name in ((1, "running_mean"), (2, "running_var"))
    )
    if own is None or means is None or variances is None:
        return None
    return dict.fromkeys(own + means, 1) | dict.fromkeys(variances, 2)
