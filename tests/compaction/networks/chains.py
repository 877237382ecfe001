"""Convolutions one after the other."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.compaction.networks.block import SPATIAL, Block, Shape, block
from tests.compaction.networks.draw import Draw


@block(SPATIAL)
def conv(draw: Draw, shape: Shape) -> nn.Module:
    """One convolution with every setting drawn, its norm and activation behind or ahead of it."""
    outputs = draw.width()
    kernel, dilation = draw.pick("kernel", [1, 2, 3, 3, 3]), draw.pick("dilation", [1, 1, 1, 2])
    padding, stride = draw.pick("padding", [0, 0, 1, 1, 2, "same", "valid"]), draw.pick("stride", [1, 1, 1, 2])
    stride, kernel = (1, kernel | 1) if padding == "same" else (stride, kernel)
    mode = draw.pick("mode", ["zeros"] * 5 + ["reflect", "replicate", "circular"])
    settings = {"kernel_size": kernel, "dilation": dilation, "padding": padding, "stride": stride, "padding_mode": mode}
    first = draw.conv(shape[1], outputs, groups=draw.pick("groups", [1, 1, 1, 2, 3, 4]), **settings)
    if draw.pick("order", ["post", "post", "pre"]) == "pre":
        return nn.Sequential(draw.norm(shape[1]), draw.act(), first)
    return nn.Sequential(first, draw.norm(outputs), draw.act())


@block(SPATIAL)
def chain(draw: Draw, shape: Shape) -> nn.Module:
    """Convolution, norm and activation, two or three times."""
    layers, width = [], shape[1]
    for _ in range(draw.pick("length", [2, 3])):
        new = draw.width()
        layers += [draw.conv(width, new), draw.norm(new), draw.act()]
        width = new
    return nn.Sequential(*layers)


@block(SPATIAL)
def depthwise(draw: Draw, shape: Shape) -> nn.Module:
    """A depthwise convolution and a pointwise one."""
    wide, outputs = shape[1] * draw.pick("multiplier", [1, 1, 2]), draw.width()
    stride = draw.pick("stride", [1, 1, 2])
    deep = draw.conv(
        shape[1], wide, groups=shape[1], kernel_size=3, padding=draw.pick("padding", [0, 1]), stride=stride
    )
    point = draw.conv(wide, outputs, kernel_size=1)
    return nn.Sequential(draw.norm(shape[1]), deep, draw.norm(wide), draw.act(), point, draw.norm(outputs), draw.act())


@block(SPATIAL)
def grouped(draw: Draw, shape: Shape) -> nn.Module:
    """A grouped convolution behind a full one."""
    groups = draw.pick("groups", [2, 3, 4])
    wide = groups * draw.pick("wide", [1, 2, 3])
    first, second = draw.conv(shape[1], wide), draw.conv(wide, groups * draw.pick("out", [1, 2, 3]), groups=groups)
    return nn.Sequential(first, draw.norm(wide), draw.act(), second, draw.norm(second.out_channels), draw.act())


@block(SPATIAL)
def transposed(draw: Draw, shape: Shape) -> nn.Module:
    """A transposed convolution."""
    groups = math.gcd(draw.pick("groups", [1, 1, 2, 3]), shape[1])
    outputs, stride = groups * draw.pick("wide", [1, 2, 3]), draw.pick("stride", [1, 2])
    settings = {"kernel_size": draw.pick("kernel", [2, 3]), "padding": draw.pick("padding", [0, 1]), "stride": stride}
    extra = draw.pick("extra", [0, 1]) if stride == 2 else 0
    bias = draw.pick("bias", [True, False])
    up = draw.kind("ConvTranspose")(shape[1], outputs, groups=groups, output_padding=extra, bias=bias, **settings)
    return nn.Sequential(draw.norm(shape[1]), draw.act(), up, draw.norm(outputs), draw.act())


@block(SPATIAL)
def functional(draw: Draw, shape: Shape) -> nn.Module:
    """A convolution called as a function on parameters."""
    outputs = draw.width()
    dims, groups = draw.dims, math.gcd(draw.pick("groups", [1, 1, 1, 2]), math.gcd(outputs, shape[1]))
    weight = nn.Parameter(torch.zeros(outputs, shape[1] // groups, *[3] * dims))
    bias = nn.Parameter(torch.zeros(outputs))
    call, scaled = draw.call("conv"), draw.pick("scaled", [False, False, True])

    def run(m: Any, x: Tensor) -> Tensor:
        kernel = m.weight * 0.5 if scaled else m.weight
        y: Tensor = m.act(m.norm(call(m.first(x), kernel, m.bias, padding=1, groups=groups)))
        return y

    return Block(run, weight=weight, bias=bias, first=draw.norm(shape[1]), norm=draw.norm(outputs), act=draw.act())
