"""Branches and maps that meet in a product or a sum."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.compaction.networks.block import SPATIAL, Block, Shape, block
from tests.compaction.networks.draw import Draw, one_of


@block(SPATIAL)
def squeeze(draw: Draw, shape: Shape) -> nn.Module:
    """Squeeze and excitation."""
    c, middle, d = shape[1], draw.pick("middle", [1, 2, 4]), draw.dims
    style, gate = draw.pick("style", ["conv", "linear", "mean"]), draw.act()
    first, second = draw.conv(c, middle, kernel_size=1), draw.conv(middle, c, kernel_size=1)
    if style == "linear":
        first, second = nn.Linear(c, middle), nn.Linear(middle, c)
    pool, dims = draw.call("adaptive_avg_pool"), tuple(range(2, 2 + d))

    def run(m: Any, x: Tensor) -> Tensor:
        x = m.norm(x)
        if style == "linear":
            s = torch.sigmoid(m.second(m.gate(m.first(pool(x, 1).flatten(1)))))
            return x * s.view(s.shape[0], s.shape[1], *[1] * d)
        s = x.mean(dims, keepdim=True) if style == "mean" else pool(x, 1)
        return x * F.hardsigmoid(m.second(m.gate(m.first(s))))

    return Block(run, norm=draw.norm(c), first=first, second=second, gate=gate)


@block(SPATIAL)
def gates(draw: Draw, shape: Shape) -> nn.Module:
    """Two branches of one width that meet entry by entry."""
    outputs = draw.width()
    left = nn.Sequential(draw.conv(shape[1], outputs), draw.norm(outputs), draw.act())
    right = nn.Sequential(draw.conv(shape[1], outputs), draw.norm(outputs), draw.act())
    run = {
        "mul": lambda m, x: m.left(x) * torch.sigmoid(m.right(x)),
        "mul raw": lambda m, x: m.left(x) * m.right(x),
        "sub": lambda m, x: m.left(x) - m.right(x),
        "mix": lambda m, x: torch.add(m.left(x), m.right(x), alpha=0.5),
        "stack": lambda m, x: torch.stack([m.left(x), m.right(x)]).sum(0),
        "max": lambda m, x: torch.maximum(m.left(x), m.right(x)),
        "lerp": lambda m, x: torch.lerp(m.left(x), m.right(x), 0.3),
        "glu": lambda m, x: F.glu(torch.cat([m.left(x), m.right(x)], 1), 1),
    }
    return one_of(draw, run, left=left, right=right)


@block(SPATIAL)
def attention(draw: Draw, shape: Shape) -> nn.Module:
    """One map for all channels."""
    parts = {"norm": draw.norm(shape[1]), "conv": draw.conv(shape[1], 1), "act": draw.act(), "one": draw.norm(1)}
    run = {
        "mul": lambda m, x: m.norm(x) * m.act(m.one(m.conv(x))),
        "add": lambda m, x: m.act(m.one(m.conv(x))) + m.norm(x),
        "channel max": lambda m, x: m.norm(x) * x.amax(1, keepdim=True).tanh(),
        "channel mean": lambda m, x: m.norm(x) - m.norm(x).mean(1, keepdim=True),
        "max": lambda m, x: m.norm(x) + m.act(x).max(dim=1, keepdim=True)[0],
    }
    return one_of(draw, run, **parts)
