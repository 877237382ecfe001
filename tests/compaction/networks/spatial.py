"""Pooling, resizing and padding."""

import torch.nn.functional as F
from torch import nn

from tests.compaction.networks.block import SPATIAL, Shape, block
from tests.compaction.networks.draw import Draw, one_of


@block(SPATIAL)
def pool(draw: Draw, shape: Shape) -> nn.Module:
    """Pooling by windows and over whole axes."""
    d = draw.dims
    average, largest, adaptive = draw.call("avg_pool"), draw.call("max_pool"), draw.call("adaptive_avg_pool")
    adaptive_max = draw.call("adaptive_max_pool")
    run = {
        "max": lambda m, x: m.act(largest(m.norm(x), 2)),
        "max padded": lambda m, x: largest(m.norm(x), 3, 1, 1),
        "max ceil": lambda m, x: largest(m.norm(x), 2, ceil_mode=True),
        "avg": lambda m, x: m.act(average(m.norm(x), 2)),
        "avg padded": lambda m, x: average(m.act(m.norm(x)), 3, 1, 1),
        "avg excluded": lambda m, x: average(m.act(m.norm(x)), 3, 1, 1, count_include_pad=False),
        "avg ceil": lambda m, x: average(m.act(m.norm(x)), 2, ceil_mode=True),
        "avg ceil padded": lambda m, x: average(m.act(m.norm(x)), 3, 2, 1, ceil_mode=True, count_include_pad=False),
        "adaptive": lambda m, x: adaptive(m.act(m.norm(x)), 2),
        "adaptive max": lambda m, x: adaptive_max(m.act(m.norm(x)), 3),
        "mean one": lambda m, x: x + m.norm(x).mean(-1, keepdim=True),
        "sum": lambda m, x: x + m.act(m.norm(x)).sum(dim=tuple(range(2, 2 + d)), keepdim=True) * 0.1,
        "amax": lambda m, x: x * m.act(m.norm(x)).amax(tuple(range(2, 2 + d)), keepdim=True),
        "std": lambda m, x: x + m.norm(x).std(-1, keepdim=True, correction=0),
    }
    if d == 2:
        run["avg divisor"] = lambda m, x: average(m.act(m.norm(x)), 2, ceil_mode=True, divisor_override=3)
    return one_of(draw, run, norm=draw.norm(shape[1]), act=draw.act())


@block(SPATIAL)
def resize(draw: Draw, shape: Shape) -> nn.Module:
    """Interpolation."""
    smooth = ["linear", "bilinear", "trilinear"][draw.dims - 1]
    run = {
        "nearest": lambda m, x: F.interpolate(m.act(m.norm(x)), scale_factor=2),
        "smooth": lambda m, x: F.interpolate(m.norm(x), scale_factor=2, mode=smooth, align_corners=False),
        "corners": lambda m, x: F.interpolate(
            m.act(m.norm(x)), size=tuple(5 for _ in x.shape[2:]), mode=smooth, align_corners=True
        ),
        "module": lambda m, x: m.up(m.norm(x)),
    }
    return one_of(draw, run, norm=draw.norm(shape[1]), act=draw.act(), up=nn.Upsample(scale_factor=2))


@block(SPATIAL)
def pad(draw: Draw, shape: Shape) -> nn.Module:
    """Padding of the image, and of channels."""
    sides = [1, 0, 1, 1, 0, 1][: 2 * draw.dims]
    run = {
        "zero": lambda m, x: F.pad(m.act(m.norm(x)), sides),
        "value": lambda m, x: F.pad(m.act(m.norm(x)), sides, value=0.5),
        "reflect": lambda m, x: F.pad(m.act(m.norm(x)), sides, mode="reflect"),
        "replicate": lambda m, x: F.pad(m.act(m.norm(x)), sides, "replicate"),
        "circular": lambda m, x: F.pad(m.act(m.norm(x)), sides, "circular"),
        "crop": lambda m, x: F.pad(m.norm(x), [-1, 0]),
        "channels": lambda m, x: F.pad(m.norm(x), [0] * 2 * (x.dim() - 2) + [0, 2]),
        "module": lambda m, x: m.pad(m.norm(x)),
    }
    module = draw.kind("ConstantPad")(1, draw.pick("value", [0.0, 0.25]))
    return one_of(draw, run, norm=draw.norm(shape[1]), act=draw.act(), pad=module)
