"""Concatenated branches."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.compaction.networks.block import SPATIAL, Block, Shape, block
from tests.compaction.networks.draw import Draw, one_of


@block(SPATIAL)
def dense(draw: Draw, shape: Shape) -> nn.Module:
    """Layers that append to what they got, as in DenseNet."""
    growth, width, layers = draw.pick("growth", [1, 2, 3]), shape[1], []
    for _ in range(draw.pick("length", [2, 3])):
        body = nn.Sequential(draw.norm(width), draw.act(), draw.conv(width, growth))
        layers.append(Block(lambda m, x: torch.cat([x, m.body(x)], 1), body=body))
        width += growth
    return nn.Sequential(*layers, draw.norm(width), draw.act())


@block(SPATIAL)
def inception(draw: Draw, shape: Shape) -> nn.Module:
    """Three branches side by side."""
    widths = [draw.pick("branch", [1, 2, 3, 4]) for _ in range(3)]
    one = nn.Sequential(draw.conv(shape[1], widths[0], kernel_size=1), draw.norm(widths[0]))
    three = nn.Sequential(draw.norm(shape[1]), draw.act(), draw.conv(shape[1], widths[1], kernel_size=3, padding=1))
    pool = draw.kind(draw.pick("pool", ["MaxPool", "AvgPool"]))(3, stride=1, padding=1)
    pooled = nn.Sequential(pool, draw.conv(shape[1], widths[2], kernel_size=1), draw.norm(widths[2]), draw.act())
    bare = draw.pick("with input", [False, True])

    def run(m: Any, x: Tensor) -> Tensor:
        parts = [m.one(x), m.three(x), m.pooled(x)]
        return torch.cat([*parts, x] if bare else parts, dim=1)

    return Block(run, one=one, three=three, pooled=pooled)


@block(SPATIAL)
def itself(draw: Draw, shape: Shape) -> nn.Module:
    """A tensor that meets itself."""
    run = {
        "cat": lambda m, x: torch.cat([x, x], 1),
        "cat act": lambda m, x: torch.cat((x, m.act(m.norm(x))), dim=1),
        "crelu": lambda m, x: torch.relu(torch.cat([m.norm(x), -m.norm(x)], dim=-1 - m.dims)),
        "add": lambda m, x: m.norm(x) + x,
        "add twice": lambda m, x: x + x,
        "mul": lambda m, x: x * x,
        "sub": lambda m, x: m.norm(x) - m.norm(x) + x,
    }
    made = one_of(draw, run, norm=draw.norm(shape[1]), act=draw.act())
    made.dims = draw.dims  # type: ignore[assignment]
    return made


@block(SPATIAL)
def second(draw: Draw, shape: Shape) -> nn.Module:
    """Takes in the model's second input."""
    c, pool = shape[1], draw.call("adaptive_avg_pool")
    run = {
        "add": lambda m, x, y: x + m.norm(m.conv(pool(y, 1))),
        "mul": lambda m, x, y: x * torch.sigmoid(m.norm(m.conv(pool(y, 1)))),
        "cat": lambda m, x, y: torch.cat([x, pool(m.norm(m.conv(y)), tuple(x.shape[2:]))], 1),
        "raw": lambda m, x, y: torch.cat([m.norm(x), pool(y, tuple(x.shape[2:]))], 1),
    }
    made = one_of(draw, run, conv=draw.conv(draw.given["channels"], c), norm=draw.norm(c))
    made.takes_second = True
    return made
