"""Channels in other places, and sizes that stand in the code."""

import math

import torch
from torch import nn

from tests.compaction.networks.block import SPATIAL, Block, Shape, block
from tests.compaction.networks.draw import Draw, one_of


@block(SPATIAL)
def reshapes(draw: Draw, shape: Shape) -> nn.Module:
    """Shapes and tensors made from sizes."""
    _, c, *rest = shape
    run = {
        "hard": lambda m, x: m.act(m.norm(x).view(x.shape[0], c, math.prod(rest))).view(x.shape[0], c, *rest),
        "half": lambda m, x: m.act(m.norm(x).reshape(x.shape[0], c, -1)).view(x.shape),
        "free": lambda m, x: m.act(m.norm(x).flatten(2)).view(x.shape[0], -1, *x.shape[2:]),
        "over sqrt": lambda m, x: m.act(m.norm(x)) / math.sqrt(m.norm(x).shape[1]),
        "over pixels": lambda m, x: m.act(m.norm(x)) / x.shape[2],
        "over mean": lambda m, x: m.act(m.norm(x)) * float(x.detach().mean()),
        "if": lambda m, x: m.norm(x) if m.norm(x).shape[1] == c else m.act(x),
        "new": lambda m, x: torch.cat([m.norm(x), x.new_ones(x.shape[0], 1, *x.shape[2:])], 1),
        "ones": lambda m, x: m.act(m.norm(x) * x.new_ones(c, *[1] * len(rest))),
        "full": lambda m, x: m.act(m.norm(x)) + torch.full_like(x, 0.25),
    }
    return one_of(draw, run, hard={"hard", "half", "over sqrt", "if"}, norm=draw.norm(c), act=draw.act())


@block(SPATIAL)
def last(draw: Draw, shape: Shape) -> nn.Module:
    """Channels moved last for linear layers, as in ConvNeXt."""
    c, wide, norm = shape[1], draw.width(), draw.pick("inner", ["none", "layer"])
    parts = {
        "norm": draw.norm(c),
        "inner": nn.LayerNorm(c) if norm == "layer" else nn.Identity(),
        "one": nn.Linear(c, wide, bias=draw.pick("bias", [True, False])),
        "two": nn.Linear(wide, c),
        "act": draw.act(),
        "gamma": nn.Parameter(torch.ones(c)),
    }
    if draw.made["act"] in {"softmax", "normalize"}:
        parts["act"] = nn.GELU()
    return Block(
        lambda m, x: x + (m.gamma * m.two(m.act(m.one(m.inner(m.norm(x).movedim(1, -1)))))).movedim(-1, 1), **parts
    )


@block(SPATIAL)
def written(draw: Draw, shape: Shape) -> nn.Module:
    """`reshape(n, C, -1)` with C in the code: a narrower tensor may pass through it, its channels mixed."""
    c, wide, ones = shape[1], draw.pick("wide", [2, 4, 6, 8]), [1] * draw.dims
    run = {
        "mean": lambda m, x: x * m.norm(x).reshape(len(x), c, -1).mean(-1).view(-1, c, *ones),
        "after conv": lambda m, x: m.act(m.after(m.conv(x))).reshape(x.shape[0], wide, -1).view(-1, wide, *x.shape[2:]),
        "softmax": lambda m, x: m.norm(x).reshape(x.size(0), c, -1).softmax(-1).view(x.shape),
        "sum": lambda m, x: m.conv(x) * m.after(m.conv(x)).view(len(x), wide, -1).sum(2).view(len(x), wide, *ones),
        "batch": lambda m, x: m.norm(x).reshape(-1, c, *x.shape[2:]),
        "unflatten": lambda m, x: m.after(m.conv(x)).unflatten(1, (2, wide // 2)).sum(1),
    }
    parts = {"norm": draw.norm(c), "conv": draw.conv(c, wide), "after": draw.norm(wide), "act": draw.act()}
    return one_of(draw, run, hard=run.keys() - {"unflatten"}, **parts)
