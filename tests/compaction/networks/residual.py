"""Streams that blocks add to."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.compaction.networks.block import SPATIAL, Block, Shape, block
from tests.compaction.networks.draw import Draw


@block(SPATIAL)
def post_residual(draw: Draw, shape: Shape) -> nn.Module:
    """The block of a ResNet, with or without a projection."""
    stride, middle = draw.pick("stride", [1, 1, 2]), draw.width()
    project = draw.pick("project", [True, False, False]) or stride > 1
    outputs = draw.width() if project else shape[1]
    first = draw.conv(shape[1], middle, kernel_size=3, padding=1, stride=stride)
    body = nn.Sequential(first, draw.norm(middle), draw.act(), draw.conv(middle, outputs), draw.norm(outputs))
    short: nn.Module = nn.Identity()
    if project:
        short = nn.Sequential(draw.conv(shape[1], outputs, kernel_size=1, stride=stride), draw.norm(outputs))
    return Block(lambda m, x: m.act(m.body(x) + m.short(x)), body=body, short=short, act=draw.act())


@block(SPATIAL)
def pre_residual(draw: Draw, shape: Shape) -> nn.Module:
    """The pre-activation block, with or without a projection."""
    stride, middle = draw.pick("stride", [1, 1, 2]), draw.width()
    project = draw.pick("project", [None, None, "raw", "active"]) or ("raw" if stride > 1 else None)
    outputs = draw.width() if project else shape[1]
    parts: dict[str, nn.Module] = {
        "norm1": draw.norm(shape[1]),
        "conv1": draw.conv(shape[1], middle, kernel_size=1),
        "norm2": draw.norm(middle),
        "conv2": draw.conv(middle, outputs, kernel_size=3, padding=1, stride=stride),
        "act": draw.act(),
    }
    if project:
        parts["short"] = draw.conv(shape[1], outputs, kernel_size=1, stride=stride)
    added_in_place = draw.pick("augmented", [False, False, True])

    def run(m: Any, x: Tensor) -> Tensor:
        stream = x
        if project == "raw":
            stream = m.short(x)
        y = m.act(m.norm1(x))
        if project == "active":
            stream = m.short(y)
        y = m.conv2(m.act(m.norm2(m.conv1(y))))
        if added_in_place:
            y += stream
            return y
        return stream + y

    return Block(run, **parts)


@block(SPATIAL)
def stage(draw: Draw, shape: Shape) -> nn.Module:
    """Pre-activation blocks on one stream."""
    blocks = []
    for _ in range(draw.pick("length", [2, 3])):
        middle = draw.width()
        body = [draw.norm(shape[1]), draw.act(), draw.conv(shape[1], middle), draw.norm(middle), draw.act()]
        blocks.append(Block(lambda m, x: x + m.body(x), body=nn.Sequential(*body, draw.conv(middle, shape[1]))))
    return nn.Sequential(*blocks, draw.norm(shape[1]))


def _listed_body(draw: Draw, c: int, dead: bool) -> nn.Module:
    middle, ending = draw.width(), draw.norm(c)
    if dead:
        ending.rate, ending.shifts = 1.0, False
    return nn.Sequential(
        draw.norm(c), draw.act(), draw.conv(c, middle), draw.norm(middle), draw.conv(middle, c), ending
    )


@block(SPATIAL)
def listed(draw: Draw, shape: Shape) -> nn.Module:
    """Residual blocks run by a loop that counts them; a dead one may not shift the others' numbers."""
    c, length, dead = shape[1], draw.pick("length", [2, 3, 4]), draw.pick("dead", [None, 0, 0, 1, "all"])
    bodies = [_listed_body(draw, c, dead in (i, "all")) for i in range(length)]
    whole = draw.pick("whole", [False, True])
    if whole:
        bodies = [Block(lambda m, x: x + m.body(x), body=body) for body in bodies]
    how = draw.pick("how", ["add", "gain", "tap", "last", "norms"])

    def run(m: Any, x: Tensor) -> Tensor:
        taps = []
        for i, layer in enumerate(m.layers):
            y = layer(m.norms[i](x) if how == "norms" else x)
            if how == "gain":
                y = y * m.gains[i]
            x = y if whole else x + y
            if how == "tap" and i in (0, 2):
                taps.append(x)
            if how == "last" and i < length - 1:
                x = m.act(x)
        return torch.cat([x, *taps], 1)

    container = (
        nn.ModuleList(bodies) if draw.pick("container", ["list", "sequential"]) == "list" else nn.Sequential(*bodies)
    )
    norms = nn.ModuleList(draw.norm(c) for _ in bodies)
    return Block(run, layers=container, norms=norms, gains=nn.Parameter(torch.ones(length)), act=draw.act())
