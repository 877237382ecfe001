"""Modules that are called on tensors with different dead channels; channels that are constant but for borders."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.compaction.networks.block import FLAT, SPATIAL, Block, Shape, block
from tests.compaction.networks.draw import Draw, one_of


@block(SPATIAL)
def branches(draw: Draw, shape: Shape) -> nn.Module:
    """One tower for two tensors, each behind a norm of its own; what the two become."""
    c, wide = shape[1], draw.width()
    tower = nn.Sequential(
        draw.conv(c, wide, groups=draw.pick("groups", [1, 1, 1, c])), draw.norm(wide), draw.act(), draw.norm(wide)
    )
    pool = draw.call("avg_pool")

    def both(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return m.tower(m.left(x)), m.tower(m.right(x))

    run = {
        "difference": lambda m, x: torch.sub(*both(m, x)),
        "product": lambda m, x: torch.mul(*both(m, x)),
        "joined": lambda m, x: torch.cat(both(m, x), 1),
        "stacked": lambda m, x: torch.stack(both(m, x), 2).flatten(1, 2),
        "one is gated": lambda m, x: m.after(m.tower(m.left(x))) + m.tower(m.right(x)),
        "one is unread": lambda m, x: m.tower(m.left(x)) + 0 * m.tower(m.right(x)).mean(),
        "levels": lambda m, x: m.tower(m.left(x)) + F.interpolate(m.tower(m.right(pool(x, 1))), x.shape[2:]),
        "summed inputs": lambda m, x: m.tower(m.left(x)) * m.tower(m.left(x) + m.right(x)),
    }
    parts = {"tower": tower, "left": draw.norm(c), "right": draw.norm(c), "after": draw.norm(wide)}
    return one_of(draw, run, **parts)


@block(SPATIAL)
def steps(draw: Draw, shape: Shape) -> nn.Module:
    """A cell that runs three times on its own state, which starts at zero."""
    c, wide = shape[1], draw.width()
    parts = {
        "norm": draw.norm(c),
        "cell": draw.conv(c + wide, wide, kernel_size=3, padding=1),
        "state": draw.norm(wide),
        "act": draw.act(),
        "head": draw.conv(wide, c, kernel_size=1),
    }

    def run(m: Any, x: Tensor) -> Tensor:
        y = m.norm(x)
        h = y.new_zeros(y.shape[0], wide, *y.shape[2:])
        for _ in range(3):
            h = m.act(m.state(m.cell(torch.cat([y, h], 1))))
        out: Tensor = m.head(h)
        return out

    return Block(run, **parts)


@block(SPATIAL)
def bordered(draw: Draw, shape: Shape) -> nn.Module:
    """A depthwise convolution with padding on partly constant channels, and what reads it."""
    c, kernel = shape[1], draw.pick("kernel", [2, 3, 3, 5])
    depthwise = draw.conv(
        c, c, groups=c, kernel_size=kernel, padding=kernel // 2, stride=draw.pick("stride", [1, 1, 2, 3])
    )
    pools = {"max": draw.kind("MaxPool")(3, 2, 1), "avg": draw.kind("AvgPool")(3, 2, 1)}
    run = {
        "pointwise": lambda m, x: m.point(m.act(m.norm(m.deep(m.first(x))))),
        "padded": lambda m, x: m.wide(m.act(m.norm(m.deep(m.first(x))))),
        "again": lambda m, x: m.point(m.act(m.two(m.act(m.deep(m.first(x)))))),
        "layer norm": lambda m, x: m.point(m.layer(m.deep(m.first(x)).movedim(1, -1)).movedim(-1, 1)),
        "pooled": lambda m, x: m.point(m.pool(m.act(m.deep(m.first(x))))),
        "squeezed": lambda m, x: (lambda y: m.point(y * y.flatten(2).mean(2)[(...,) + (None,) * m.dims].sigmoid()))(
            m.norm(m.deep(m.first(x)))
        ),
        "padding by hand": lambda m, x: m.point(F.pad(m.first(x), [1, 2] * m.dims)),
        "returned": lambda m, x: m.norm(m.deep(m.first(x))),
        "added": lambda m, x: m.point((lambda y: m.deep(y) + m.beside(y))(m.first(x))),
    }
    first, norm = draw.norm(c), draw.norm(c)
    parts = {
        "first": first,
        "deep": depthwise,
        "beside": draw.conv(c, c, groups=c, kernel_size=1, stride=depthwise.stride),
        "two": draw.conv(c, c, groups=c, kernel_size=3, padding=1),
        "norm": norm,
        "act": draw.act(),
        "pool": pools[draw.pick("pool", list(pools))],
        "point": draw.conv(c, draw.width(), kernel_size=1),
        "wide": draw.conv(c, draw.width(), kernel_size=3, padding=1),
        "layer": nn.LayerNorm(c),
    }
    made = one_of(draw, run, **parts)
    made.dims = draw.dims
    return made


@block(FLAT)
def rows(draw: Draw, shape: Shape) -> nn.Module:
    """Linear layers that are called on rows and on sequences of rows."""
    c, wide = shape[1], draw.width()
    parts = {"left": draw.norm(c), "right": draw.norm(c), "one": nn.Linear(c, wide), "two": nn.Linear(wide, c)}

    def pair(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return m.left(x), m.right(x)

    run = {
        "twice": lambda m, x: m.two(m.act(m.one(m.left(x)))) + m.two(m.act(m.one(m.right(x)))),
        "a sequence": lambda m, x: m.two(m.act(m.one(torch.stack(pair(m, x), 1)))).mean(1) + m.two(m.one(m.left(x))),
        "in turn": lambda m, x: m.two(m.act(m.one(m.two(m.act(m.one(m.left(x))))))),
    }
    return one_of(draw, run, act=draw.act(), **parts)
