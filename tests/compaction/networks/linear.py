"""From images to rows, and rows."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.compaction.networks.block import FLAT, SPATIAL, Block, Shape, block
from tests.compaction.networks.draw import Draw, one_of


@block(SPATIAL)
def flat(draw: Draw, shape: Shape) -> nn.Module:
    """Images into rows, and a linear layer that fits them."""
    _, c, *rest = shape
    d, all_sizes = draw.dims, math.prod(rest)
    adaptive = draw.call("adaptive_avg_pool")
    run = {
        "flatten": lambda m, x: m.act(m.norm(x)).flatten(1),
        "view": lambda m, x: m.norm(x).view(x.shape[0], -1),
        "reshape": lambda m, x: m.act(m.norm(x)).reshape(len(x), -1),
        "hard": lambda m, x: m.norm(x).view(x.shape[0], c * all_sizes),
        "sizes": lambda m, x: m.norm(x).reshape(x.size(0), x.size(1) * math.prod(x.shape[2:])),
        "global": lambda m, x: torch.flatten(adaptive(m.act(m.norm(x)), 1), 1),
        "mean": lambda m, x: m.act(m.norm(x)).mean(tuple(range(2, 2 + d))),
        "max": lambda m, x: m.norm(x).amax(list(range(2, 2 + d))),
        "squeeze": lambda m, x: adaptive(m.norm(x), 1).view(x.shape[0], c),
        "sum": lambda m, x: m.act(m.norm(x)).sum(dim=-1).flatten(start_dim=1) * 0.1,
        "last": lambda m, x: m.norm(x).movedim(1, -1).flatten(1),
    }
    made = one_of(draw, run, hard={"hard", "sizes", "squeeze"}, norm=draw.norm(c), act=draw.act())
    return nn.Sequential(made, _LazyLinear(draw.width()))


class _LazyLinear(nn.LazyLinear):
    """Takes its width from the first run."""


@block(FLAT)
def linear(draw: Draw, shape: Shape) -> nn.Module:
    """A linear layer, norm and activation."""
    outputs = draw.width()
    layer = nn.Linear(shape[1], outputs, bias=draw.pick("bias", [True, False]))
    return nn.Sequential(layer, draw.norm(outputs), draw.act())


@block(FLAT)
def linear_residual(draw: Draw, shape: Shape) -> nn.Module:
    """A residual block of linear layers."""
    c, middle = shape[1], draw.width()
    body = [draw.norm(c), draw.act(), nn.Linear(c, middle), draw.norm(middle), draw.act(), nn.Linear(middle, c)]
    return Block(lambda m, x: x + m.body(x), body=nn.Sequential(*body))


@block(FLAT)
def linear_tricks(draw: Draw, shape: Shape) -> nn.Module:
    """What else is done with rows."""
    c = shape[1]
    run = {
        "gru": lambda m, x: m.gru(m.norm(x).unsqueeze(1))[0].squeeze(1),
        "layer": lambda m, x: m.act(m.layer(m.norm(x))),
        "glu": lambda m, x: (lambda a, b: a * b.sigmoid())(*m.wide(m.norm(x)).chunk(2, -1)),
        "functional": lambda m, x: F.linear(m.act(m.norm(x)), m.wide.weight, m.wide.bias),
        "matmul": lambda m, x: m.norm(x) @ m.wide.weight.t(),
        "scale": lambda m, x: m.norm(x) * m.scale,
        "softmax": lambda m, x: m.norm(x).log_softmax(-1),
        "outer": lambda m, x: (m.norm(x).unsqueeze(2) * x.unsqueeze(1)).flatten(1)[:, :20],
        "tied": lambda m, x: F.linear(m.act(m.wide(m.norm(x))), m.wide.weight.t()),
        "bilinear": lambda m, x: m.norm(x) * x.sum(-1, keepdim=True).tanh(),
    }
    parts = {
        "norm": draw.norm(c),
        "act": draw.act(),
        "wide": nn.Linear(c, 2 * draw.pick("half", [1, 2, 3])),
        "gru": nn.GRU(c, 3, batch_first=True),
        "layer": nn.LayerNorm(c),
        "scale": nn.Parameter(torch.ones(c)),
    }
    return one_of(draw, run, **parts)
