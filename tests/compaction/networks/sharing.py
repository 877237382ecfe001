"""Modules and weights used more than once, or not where they are."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.compaction.networks.block import SPATIAL, Block, Shape, block
from tests.compaction.networks.draw import Draw, one_of


@block(SPATIAL)
def twice(draw: Draw, shape: Shape) -> nn.Module:
    """One convolution, and maybe one norm, called twice."""
    c = shape[1]
    shared = draw.conv(c, c, groups=draw.pick("groups", [1, 1, 1, 2]))
    norms = {"norm": draw.norm(c), "first": draw.norm(c)}
    if draw.pick("share", ["conv", "conv and norm"]) == "conv":
        return Block(
            lambda m, x: m.act(m.norm(m.conv(m.act(m.first(m.conv(x)))))), conv=shared, act=draw.act(), **norms
        )
    return Block(
        lambda m, x: m.act(m.norm(m.conv(m.act(m.norm(m.conv(m.first(x))))))), conv=shared, act=draw.act(), **norms
    )


@block(SPATIAL)
def odd(draw: Draw, shape: Shape) -> nn.Module:
    """Modules used in ways that a module tree does not show."""
    c, call = shape[1], draw.call("conv")
    one, two, tied = (draw.conv(c, c, kernel_size=1) for _ in range(3))
    tied.weight = one.weight
    layers = [one, draw.norm(c), draw.act(), two, draw.norm(c)]

    def indexed(m: Any, x: Tensor) -> Tensor:
        total = x
        for index, layer in enumerate(m.layers):
            x = layer(x)
            total = total + x if index in (1, 4) else total
        return total

    def dead_ends(m: Any, x: Tensor) -> Tensor:
        m.layers[3](x)
        return m.layers[:2](x)

    run = {
        "index": indexed,
        "dead ends": dead_ends,
        "keywords": lambda m, x: m.norm(input=m.layers[0](input=x)),
        "forward": lambda m, x: m.norm(m.layers[0].forward(m.layers[1].forward(x))),
        "weights": lambda m, x: call(m.norm(x), m.layers[0].weight, m.layers[3].bias),
        "weights and module": lambda m, x: call(m.norm(x), m.layers[0].weight) + m.layers[0](x),
        "tied": lambda m, x: m.tied(m.norm(m.layers[0](x))),
        "tied branches": lambda m, x: m.tied(m.norm(x)) + m.layers(x),
        "wrapped": lambda m, x: m.layers(m.normed(m.norm(x))),
    }
    normed = nn.utils.parametrizations.weight_norm(draw.conv(c, c, kernel_size=1))
    parts = {"layers": nn.Sequential(*layers), "norm": draw.norm(c), "tied": tied, "normed": normed}
    if draw.pick("container", ["sequential", "list"]) == "list" and draw.pick("how", ["index"]) == "index":
        parts["layers"] = nn.ModuleList(layers)
        return Block(indexed, **parts)
    return Block(run[draw.pick("use", list(run))], **parts)


@block(SPATIAL)
def spare(draw: Draw, shape: Shape) -> nn.Module:
    """Tied weights of which one owner is never called."""
    c, wide = shape[1], draw.width()
    used, unused = (draw.conv(c, wide, kernel_size=3, padding=1) for _ in range(2))
    unused.weight = used.weight
    norm, after = draw.norm(wide), nn.Identity()
    if draw.pick("tied norm", [False, True]) and isinstance(norm, nn.modules.batchnorm._BatchNorm):
        after = draw.kind("BatchNorm")(wide, affine=norm.affine)
        after.weight, after.bias, after.rate, after.shifts, after.sparse = norm.weight, norm.bias, 0.0, False, False
    parts = {"first": draw.norm(c), "used": used, "norm": norm, "act": draw.act()}
    others = {"unused": unused, "after": after}
    ahead = draw.pick("spare first", [False, True])
    ordered = {**others, **parts} if ahead else {**parts, **others}
    return Block(lambda m, x: m.act(m.norm(m.used(m.first(x)))), **ordered)


@block(SPATIAL)
def shared_scale(draw: Draw, shape: Shape) -> nn.Module:
    """One parameter a channel, used in two places."""
    c = shape[1]
    run = {
        "two streams": lambda m, x: m.norm(x) * m.scale + m.other(m.conv(x)) * m.scale,
        "scale and shift": lambda m, x: m.act(m.norm(x) * m.scale + m.scale),
        "around": lambda m, x: m.conv(m.norm(x) * m.scale) * m.scale,
        "two norms": lambda m, x: torch.cat([m.norm(x) * m.scale, m.other(x) + m.scale], 1),
        "one after": lambda m, x: m.act(m.norm(x) + m.scale) * m.scale,
        "squared": lambda m, x: m.norm(x) * (m.scale * m.scale),
        "of a norm": lambda m, x: F.batch_norm(m.conv(m.norm(x)), m.mean, m.var, m.scale.flatten(), m.flat) * m.scale,
        "two blocks": lambda m, x: x + m.scale * m.conv(x + m.scale * m.norm(x)),
    }
    parts = {
        "scale": nn.Parameter(torch.ones(c, *[1] * draw.dims)),
        "flat": nn.Parameter(torch.ones(c)),
        "mean": torch.zeros(c),
        "var": torch.ones(c),
        "norm": draw.norm(c),
        "other": draw.norm(c),
        "conv": draw.conv(c, c),
    }
    return one_of(draw, run, act=draw.act(), **parts)
