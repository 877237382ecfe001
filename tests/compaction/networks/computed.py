"""Weights and scales that are computed from what is stored."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.compaction.networks.block import SPATIAL, Block, Shape, block
from tests.compaction.networks.draw import Draw, one_of


@block(SPATIAL)
def computed_weights(draw: Draw, shape: Shape) -> nn.Module:
    """Convolutions whose weights are made anew in each pass."""
    c, outputs, call = shape[1], draw.width(), draw.call("conv")
    axes = tuple(range(1, 2 + draw.dims))

    def standard(weight: Tensor) -> Tensor:
        weight = weight - weight.mean(axes, keepdim=True)
        return weight / (weight.pow(2).mean(axes, keepdim=True).sqrt() + 0.1)

    weights = {
        "standard": lambda m: standard(m.conv.weight),
        "scaled": lambda m: m.conv.weight * m.scale.view(-1, *[1] * (1 + draw.dims)),
        "masked": lambda m: m.conv.weight * m.mask,
        "rounded": lambda m: torch.round(m.conv.weight * 4) / 4,
        "sum": lambda m: m.conv.weight + m.other.weight,
        "tanh": lambda m: torch.tanh(m.conv.weight),
        "columns": lambda m: m.conv.weight * m.inputs.view(1, -1, *[1] * draw.dims),
        "normal": lambda m: F.normalize(m.conv.weight.flatten(1), dim=1, eps=0.1).view_as(m.conv.weight),
        "clamped": lambda m: m.conv.weight.clamp(-0.2, 0.2),
        "joined": lambda m: torch.cat([m.conv.weight[:1], m.other.weight[1:]]),
    }
    weight = weights[draw.pick("how", list(weights))]
    conv = draw.conv(c, outputs, kernel_size=3, padding=1)
    mask = (torch.rand(conv.weight.shape, generator=torch.Generator().manual_seed(draw.given["seed"])) < 0.6).double()
    mask[draw.pick("gone", [0, 1, 2]) % outputs] = 0
    parts = {
        "conv": conv,
        "other": draw.conv(c, outputs, kernel_size=3, padding=1),
        "first": draw.norm(c),
        "norm": draw.norm(outputs),
        "act": draw.act(),
        "scale": torch.arange(outputs, dtype=torch.float64) % 3,
        "inputs": torch.arange(c, dtype=torch.float64) % 2,
        "mask": mask,
    }
    return Block(lambda m, x: m.act(m.norm(call(m.first(x), weight(m), m.conv.bias, padding=1))), **parts)


@block(SPATIAL)
def parametrised(draw: Draw, shape: Shape) -> nn.Module:
    """Weight norm, spectral norm and weight norm of old."""
    c, outputs = shape[1], draw.width()
    wrap = {
        "weight": parametrizations.weight_norm,
        "inputs": lambda conv: parametrizations.weight_norm(conv, dim=1),
        "spectral": parametrizations.spectral_norm,
    }
    conv = wrap[draw.pick("how", list(wrap))](draw.conv(c, outputs, kernel_size=3, padding=1))
    return nn.Sequential(draw.norm(c), conv, draw.norm(outputs), draw.act())


class _Frozen(nn.Module):
    """A batch norm of buffers, written out."""

    def __init__(self, width: int, dims: int, rate: float, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        alive = torch.rand(width, generator=generator) >= rate
        self.dims = dims
        self.register_buffer("weight", torch.randn(width, generator=generator) * alive)
        self.register_buffer("bias", torch.randn(width, generator=generator) * 0.3)
        self.register_buffer("running_mean", torch.randn(width, generator=generator) * 0.3)
        self.register_buffer("running_var", torch.rand(width, generator=generator) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, -1, *[1] * self.dims)
        scale = self.weight.reshape(shape) * (self.running_var.reshape(shape) + 1e-5).rsqrt()
        return x * scale + (self.bias.reshape(shape) - self.running_mean.reshape(shape) * scale)


@block(SPATIAL)
def frozen(draw: Draw, shape: Shape) -> nn.Module:
    """Frozen batch norms around convolutions, and in a residual block."""
    c, wide, rate = shape[1], draw.width(), draw.pick("rate", [0.0, 0.5, 0.5, 1.0])
    one, two = (_Frozen(n, draw.dims, rate, draw.given["seed"] + n) for n in (wide, c))
    parts = {"one": draw.conv(c, wide), "a": one, "two": draw.conv(wide, c), "b": two, "act": draw.act()}
    run = {
        "chain": lambda m, x: m.act(m.b(m.two(m.act(m.a(m.one(x)))))),
        "residual": lambda m, x: m.act(x + m.b(m.two(m.act(m.a(m.one(x)))))),
        "ahead": lambda m, x: m.two(m.a(m.one(m.act(m.b(x))))),
    }
    return one_of(draw, run, **parts)


@block(SPATIAL)
def layer_scale(draw: Draw, shape: Shape) -> nn.Module:
    """Products with stored vectors that contain zeros, on a stream."""
    c, wide, ones = shape[1], draw.width(), [1] * draw.dims
    kept = (torch.arange(c) % draw.pick("every", [1, 2, 3]) == 0).double()
    run = {
        "scale": lambda m, x: x + m.gamma.view(-1, *ones) * m.two(m.act(m.one(x))),
        "last": lambda m, x: x + (m.gamma * m.two(m.act(m.one(x))).movedim(1, -1)).movedim(-1, 1),
        "twice": lambda m, x: x + m.two(m.one(x) * m.mid.view(-1, *ones)) * m.gamma.view(-1, *ones),
        "squared": lambda m, x: x + m.two(m.act(m.one(x))) * (m.gamma**2).view(-1, *ones),
        "gate": lambda m, x: m.two(m.act(m.one(x))) * torch.relu(m.gamma - 0.5).view(-1, *ones) + x,
        "mask of stream": lambda m, x: m.two(m.act(m.one(x * m.gamma.view(-1, *ones)))) + x,
        "einsum": lambda m, x: x + torch.einsum("c,nc...->nc...", m.gamma, m.two(m.act(m.one(x)))),
    }
    mid = (torch.arange(wide) % 2).double()
    return one_of(draw, run, one=draw.conv(c, wide), two=draw.conv(wide, c), act=draw.act(), gamma=kept, mid=mid)


@block(SPATIAL)
def repeated(draw: Draw, shape: Shape) -> nn.Module:
    """One module called several times, on different tensors or sizes."""
    c, wide = shape[1], draw.width()

    def cell(m: Any, x: Tensor) -> Tensor:
        h = s = x.new_zeros(x.shape[0], wide, *x.shape[2:])
        for _ in range(3):
            i, f, o, g = m.gates(torch.cat([m.norm(x), h], 1)).chunk(4, 1)
            s = torch.sigmoid(f) * s + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(s)
        return h

    run = {
        "shifted": lambda m, x: (m.tower(x) - m.tower(x + 0.5)).abs(),
        "product": lambda m, x: m.tower(x) * m.tower(-x),
        "joined": lambda m, x: torch.cat([m.tower(x), m.tower(m.act(x))], 1),
        "levels": lambda m, x: (
            m.tower(x) + F.interpolate(m.tower(draw.call("avg_pool")(x, 2)), size=tuple(x.shape[2:]))
        ),
        "thrice": lambda m, x: m.back(m.tower(m.back(m.tower(m.back(m.tower(x)))))),
        "cell": cell,
        "norm": lambda m, x: m.norm(m.back(m.tower(m.norm(x)))) + m.norm(x),
        "stream": lambda m, x: x + m.back(m.tower(x)) + m.back(m.tower(x + m.back(m.tower(x)))),
    }
    parts = {
        "tower": nn.Sequential(draw.conv(c, wide), draw.norm(wide), draw.act()),
        "back": nn.Sequential(draw.conv(wide, c), draw.norm(c)),
        "gates": draw.conv(c + wide, 4 * wide, kernel_size=3, padding=1),
        "norm": draw.norm(c),
        "act": draw.act(),
    }
    return one_of(draw, run, **parts)
