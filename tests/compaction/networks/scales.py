"""Parameters and buffers a channel, used directly."""

import torch
from torch import nn

from tests.compaction.networks.block import SPATIAL, Shape, block
from tests.compaction.networks.draw import Draw, one_of


@block(SPATIAL)
def scales(draw: Draw, shape: Shape) -> nn.Module:
    """Parameters and buffers a channel, used directly."""
    ones = [1] * draw.dims
    lead = draw.pick("lead", [(1,), ()])
    scale, shift = (nn.Parameter(torch.ones(*lead, shape[1], *ones)) for _ in range(2))
    run = {
        "mul": lambda m, x: m.norm(x) * m.scale,
        "add": lambda m, x: m.act(m.norm(x) + m.shift),
        "both": lambda m, x: torch.addcmul(m.shift, m.norm(x), m.scale),
        "affine": lambda m, x: m.act(m.norm(x) * m.scale + m.shift),
        "scalar": lambda m, x: m.norm(x) * m.one,
        "buffer": lambda m, x: m.norm(x) * m.mask,
        "twice": lambda m, x: m.norm(x * m.scale) * m.scale,
        "computed": lambda m, x: m.norm(x) * torch.sigmoid(m.scale),
        "residual": lambda m, x: x + m.scale * m.norm(x),
    }
    mask = torch.tensor([1.0, 0.0, 1.0]).repeat(shape[1])[: shape[1]].view(*lead, -1, *ones)
    parts = {
        "scale": scale,
        "shift": shift,
        "one": nn.Parameter(torch.ones(1)),
        "mask": mask,
        "norm": draw.norm(shape[1]),
    }
    return one_of(draw, run, act=draw.act(), **parts)
