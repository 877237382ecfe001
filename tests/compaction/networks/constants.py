"""Layers one after the other that have become constant, beside a path that lives."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.compaction.networks.block import SPATIAL, Block, MisfitError, Shape, block
from tests.compaction.networks.draw import Draw


def _step(draw: Draw, width: int) -> tuple[Callable[[Any, Tensor], Tensor], nn.Module, int]:
    """One step of a dead path: what is done, the layer that does it, and the width behind it."""
    what = draw.pick(
        "step", ["conv", "conv", "stride", "max", "avg", "padded", "adaptive", "norm", "act", "pad", "up", "up conv"]
    )
    adaptive, size = draw.call("adaptive_avg_pool"), draw.pick("size", [1, 2, 3, 4])
    layer: nn.Module = nn.Identity()
    outputs = draw.width() if what in {"conv", "stride", "up conv"} else width
    if what in {"conv", "stride"}:
        layer = draw.conv(
            width, outputs, kernel_size=3, padding=draw.pick("pad", [0, 1, 1, 2]), stride=1 + (what == "stride")
        )
    elif what == "up conv":
        layer = draw.kind("ConvTranspose")(width, outputs, 3, stride=2, padding=draw.pick("pad", [0, 1]))
    elif what in {"norm", "act"}:
        layer = draw.norm(width) if what == "norm" else draw.act()
    pools: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "max": lambda m, x: draw.call("max_pool")(x, 2),
        "avg": lambda m, x: draw.call("avg_pool")(x, 2),
        "padded": lambda m, x: draw.call("avg_pool")(x, 3, 2, 1),
        "adaptive": lambda m, x: adaptive(x, size),
        "pad": lambda m, x: F.pad(x, [1, 0] * draw.dims),
        "up": lambda m, x: F.interpolate(x, scale_factor=2),
    }
    return pools.get(what, lambda m, x: m(x)), layer, outputs


@block(SPATIAL)
def constants(draw: Draw, shape: Shape) -> nn.Module:
    """A dead norm, two to four steps behind it, and a live path resized to the same shape."""
    c, dead = shape[1], draw.kind("BatchNorm")(shape[1])
    dead.sparse, dead.rate, dead.shifts = (
        False,
        draw.pick("dead", [1.0, 1.0, 1.0, 0.6]),
        draw.pick("shift", [True, True, False]),
    )
    width, steps, layers = c, [], nn.ModuleList()
    for _ in range(draw.pick("length", [2, 3, 4])):
        step, layer, width = _step(draw, width)
        steps.append(step)
        layers.append(layer)
    pool, ends = draw.call("adaptive_avg_pool"), draw.pick("ends", ["add", "add", "mul", "cat", "gate", "alone"])

    def run(m: Any, x: Tensor) -> Tensor:
        y = m.dead(x)
        for step, layer in zip(steps, m.layers, strict=True):
            y = step(layer, y)
        live = pool(m.live(x), tuple(y.shape[2:]))
        if ends == "alone":
            return y + live.mean()
        if ends == "cat":
            return torch.cat([y, live], 1)
        if ends == "gate":
            return live * torch.sigmoid(y)
        return m.act(y + live) if ends == "add" else y * live

    return Block(run, dead=dead, layers=layers, live=draw.conv(c, width, kernel_size=1), act=draw.act())


@block(SPATIAL)
def sequence_first(draw: Draw, shape: Shape) -> nn.Module:
    """Pixels or windows come first, samples second; layers with weights in that layout."""
    c, wide = shape[1], draw.width()
    dead = draw.pick("dead", [0.5, 1.0])
    norm = draw.norm(c)
    norm.rate = dead
    parts = {
        "norm": norm,
        "conv": draw.conv(c, c, kernel_size=3, padding=1),
        "one": nn.Linear(c, wide),
        "two": nn.Linear(wide, c),
        "live": draw.conv(c, c, kernel_size=1),
        "act": draw.act(),
        "layer": nn.LayerNorm(c),
        "heads": nn.MultiheadAttention(c, 1),
    }
    if draw.made.get("act") in {"softmax", "normalize"}:
        parts["act"] = nn.GELU()
    how = draw.pick("how", ["pixels", "pixels", "windows", "rows", "heads", "transposed"])
    if how == "windows" and draw.dims != 2:
        raise MisfitError

    def first(y: Tensor) -> Tensor:
        if how == "windows":
            y = y[..., : y.shape[2] // 2 * 2, : y.shape[3] // 2 * 2]
            n, k, h, w = y.shape
            return y.reshape(n, k, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(-1, 4, k)
        return y.movedim(2, 0).movedim(2, -1) if how == "rows" else y.flatten(2).permute(2, 0, 1)

    def run(m: Any, x: Tensor) -> Tensor:
        y, live = first(m.conv(m.norm(x))), first(m.live(x))
        if how == "heads":
            y = m.heads(y, live, live)[0]
        y = m.two(m.act(m.one(m.layer(y) if how == "transposed" else y))) + live
        if how == "windows":
            return y.mean(1).unsqueeze(-1).unsqueeze(-1)
        return (
            y.movedim(0, 2).movedim(-1, 1)
            if how == "rows"
            else y.permute(1, 2, 0).reshape(x.shape[0], -1, *x.shape[2:])
        )

    return Block(run, **parts)
