"""Channels taken apart and shuffled."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.compaction.networks.block import SPATIAL, Block, MisfitError, Shape, block
from tests.compaction.networks.draw import Draw, one_of


@block(SPATIAL)
def split(draw: Draw, shape: Shape) -> nn.Module:
    """Some channels go through a layer, the others do not."""
    c = shape[1]
    if c < 2:
        raise MisfitError
    k = draw.pick("at", [1, 2, 3]) % (c - 1) + 1
    cuts: dict[str, Callable[[Tensor], Any]] = {
        "split": lambda x: x.split([k, c - k], 1),
        "torch.split": lambda x: torch.split(x, [k, x.shape[1] - k], dim=1),
        "slice": lambda x: (x[:, :k], x[:, k:]),
        "narrow": lambda x: (x.narrow(1, 0, k), x.narrow(1, k, c - k)),
        "chunk": lambda x: x.chunk(2, dim=1),
        "tensor_split": lambda x: torch.tensor_split(x, 2, dim=1),
    }
    how = draw.pick("how", list(cuts))
    left = -(-c // 2) if how in {"chunk", "tensor_split"} else k
    cut, ends = cuts[how], draw.pick("ends", ["cat", "shuffle", "first"])
    parts = {"left": nn.Sequential(draw.conv(left, left), draw.norm(left)), "norm": draw.norm(c), "act": draw.act()}

    def run(m: Any, x: Tensor) -> Tensor:
        a, b = cut(m.norm(x))
        if ends == "first":
            return m.act(m.left(a))
        return torch.cat([m.act(m.left(a)), b] if ends == "cat" else [b, m.left(a)], 1)

    return Block(run, **parts)


@block(SPATIAL)
def part(draw: Draw, shape: Shape) -> nn.Module:
    """Some channels, or all in another order."""
    k = draw.pick("at", [1, 2, 3])
    if shape[1] <= k:
        raise MisfitError
    index = torch.arange(shape[1]).flip(0)[:k]
    run = {
        "front": lambda m, x: m.norm(x)[:, :k],
        "back": lambda m, x: m.norm(x)[:, k:],
        "step": lambda m, x: m.norm(x)[:, ::2],
        "index": lambda m, x: m.norm(x).index_select(1, m.index),
        "list": lambda m, x: m.norm(x)[:, m.index],
        "flip": lambda m, x: m.norm(x).flip(1),
        "roll": lambda m, x: m.norm(x).roll(k, 1),
        "ellipsis": lambda m, x: m.norm(x)[:, -k:, ...],
        "pixels": lambda m, x: m.norm(x)[..., 1:],
        "one": lambda m, x: m.norm(x)[:, k].unsqueeze(1),
        "none": lambda m, x: m.norm(x)[:, None].squeeze(1),
        "unbind": lambda m, x: torch.stack(m.norm(x).unbind(1)[:k], 1),
    }
    return one_of(draw, run, norm=draw.norm(shape[1]), index=index)


@block(SPATIAL)
def shuffle(draw: Draw, shape: Shape) -> nn.Module:
    """Channels shuffled between groups."""
    groups = math.gcd(shape[1], draw.pick("groups", [2, 3, 4]))
    if groups == 1:
        raise MisfitError

    def by_shape(m: Any, x: Tensor) -> Tensor:
        n, c, *rest = m.norm(x).shape
        return m.norm(x).view(n, groups, c // groups, *rest).transpose(1, 2).reshape(n, c, *rest)

    if draw.pick("how", ["shape", "module"]) == "module" and draw.dims == 2:
        return nn.Sequential(draw.norm(shape[1]), nn.ChannelShuffle(groups), draw.act())
    made = Block(by_shape, norm=draw.norm(shape[1]))
    # with one channel a group nothing moves, but the view still names all of them
    made.hard = groups == shape[1]
    return made


@block(SPATIAL)
def pixels(draw: Draw, shape: Shape) -> nn.Module:
    """Channels into pixels and back."""
    if draw.dims != 2:
        raise MisfitError
    how = draw.pick("how", ["up", "up", "down"])
    if how == "up":
        outputs = draw.pick("out", [1, 2, 3])
        layers = [draw.conv(shape[1], outputs * 4), draw.norm(outputs * 4), nn.PixelShuffle(2)]
        return nn.Sequential(*layers, draw.norm(outputs), draw.act())
    crop = Block(lambda m, x: x[..., : x.shape[2] // 2 * 2, : x.shape[3] // 2 * 2])
    return nn.Sequential(draw.norm(shape[1]), crop, nn.PixelUnshuffle(2), draw.conv(shape[1] * 4, draw.width()))
