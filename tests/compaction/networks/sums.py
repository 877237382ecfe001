"""Sums of components, some of which are dropped."""

import torch
from torch import nn

from diffsparse import SignedGate, SimplexGate, SparseSum
from tests.compaction.networks.block import SPATIAL, Shape, block
from tests.compaction.networks.draw import Draw

_WEIGHTS = [[0.6, 0.0, 0.4], [0.0, 1.0], [0.0, 0.3, 0.7], [1.0, 0.0, 0.0], [0.5, 0.5], [0.0, 0.0, 0.2, 0.8]]


@block(SPATIAL)
def sparse_sum(draw: Draw, shape: Shape) -> nn.Module:
    """Convolutions of several sizes with a gate over them, as the paper's modules have it."""
    values = torch.tensor(draw.pick("weights", _WEIGHTS), dtype=torch.float64)
    how = draw.pick("gate", ["simplex", "signed", "signed", "none left"])
    if how == "none left":
        gate: SimplexGate | SignedGate = SignedGate.from_values(0 * values)
    else:
        gate = SimplexGate.from_values(values) if how == "simplex" else SignedGate.from_values(-values)
    outputs = draw.width()
    components = [_component(draw, shape[1], outputs) for _ in values]
    return nn.Sequential(draw.norm(shape[1]), SparseSum(components, gate), draw.norm(outputs), draw.act())


def _component(draw: Draw, inputs: int, outputs: int) -> nn.Module:
    what = draw.pick("component", ["conv", "conv", "conv norm", "norm conv", "identity"])
    if what == "identity" and inputs == outputs:
        return nn.Identity()
    conv = draw.conv(inputs, outputs)
    if what == "conv norm":
        return nn.Sequential(conv, draw.norm(outputs), draw.act())
    return nn.Sequential(draw.norm(inputs), draw.act(), conv) if what == "norm conv" else conv
