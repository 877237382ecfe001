"""Python numbers, taken from sizes or from data, in arithmetic with channels that may be constant."""

import math

from torch import nn

from tests.compaction.networks.block import SPATIAL, Shape, block
from tests.compaction.networks.draw import Draw, one_of


@block(SPATIAL)
def size_numbers(draw: Draw, shape: Shape) -> nn.Module:
    """Sizes of the image: another number for another image, so what they touch is not constant."""
    run = {
        "times height": lambda m, x: m.conv(m.norm(x) * x.shape[2]),
        "over width": lambda m, x: m.conv(m.norm(x) / x.shape[-1]),
        "times size": lambda m, x: m.conv(m.act(m.norm(x)) * x.size(2)),
        "plus": lambda m, x: m.conv(m.act(m.norm(x)) + 0.1 * x.shape[-1]),
        "from number": lambda m, x: m.conv(x.shape[2] - m.norm(x)),
        "over root": lambda m, x: m.norm(x) / math.sqrt(math.prod(x.shape[2:])),
        "later": lambda m, x: m.norm(m.conv(x)) * (1 / m.conv(x).shape[-1]),
        "in place": lambda m, x: m.conv(m.norm(x).mul_(x.shape[2])),
        "batch": lambda m, x: m.conv(m.norm(x) * len(x)),
        "pixels": lambda m, x: m.conv(m.act(m.norm(x)) / x[0, 0].numel()),
    }
    c = shape[1]
    return one_of(draw, run, norm=draw.norm(c), act=draw.act(), conv=draw.conv(c, c))


@block(SPATIAL)
def data_numbers(draw: Draw, shape: Shape) -> nn.Module:
    """Numbers read off the data, which leave no trace in the operation that uses them."""
    run = {
        "times mean": lambda m, x: m.conv(m.norm(x) * float(x.mean())),
        "over mean": lambda m, x: m.conv(m.norm(x) / (1 + abs(float(x.mean())))),
        "plus item": lambda m, x: m.conv(m.act(m.norm(x)) + x.amax().item()),
        "of channels": lambda m, x: m.conv(m.act(m.norm(x)) * m.norm(x).abs().mean().item()),
        "one channel": lambda m, x: m.conv(m.norm(x) * float(m.norm(x)[0, 0].sum())),
        "list": lambda m, x: m.conv(m.norm(x) + max(x.flatten().tolist())),
        "power": lambda m, x: m.norm(m.conv(x)) * 2 ** float(x.detach().mean().clamp(-1, 1)),
    }
    c = shape[1]
    return one_of(draw, run, norm=draw.norm(c), act=draw.act(), conv=draw.conv(c, c))
