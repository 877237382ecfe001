"""Random transformers over the pixels: heads, grouped queries, norms, positions and masks of many kinds."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.compaction.networks.block import SPATIAL, MisfitError, Shape, block
from tests.compaction.networks.draw import Draw


def _dies(count: int, generator: torch.Generator) -> Tensor:
    """Which of so many units are dead: none, half, or all of them."""
    rate = [0.0, 0.5, 0.5, 0.5, 1.0][int(torch.randint(5, (1,), generator=generator))]
    return torch.rand(count, generator=generator) < rate


class Attention(nn.Module):
    """Written out, by the fused function, or as the module of torch; `die` kills heads as gates do."""

    def __init__(self, draw: Draw, width: int) -> None:
        super().__init__()
        self.how = draw.pick("attention", ["written", "fused", "fused", "grouped", "torch", "biased"])
        self.groups = draw.pick("groups", [1, 2, 3])
        self.size = draw.pick("size", [1, 2, 4])
        self.heads = self.groups * (draw.pick("times", [1, 2]) if self.how == "grouped" else 1)
        self.joint, self.causal = draw.pick("joint", [True, False]), draw.pick("causal", [True, False])
        self.rotary = draw.pick("rotary", [True, False]) and self.size % 2 == 0
        self.scale = draw.pick("scale", ["number", "width", "attribute"])
        bias = draw.pick("bias", [True, False])
        inner, shared = self.heads * self.size, self.groups * self.size
        if self.how == "torch":
            if width % self.heads:
                raise MisfitError
            self.whole = nn.MultiheadAttention(width, self.heads, bias=bias, batch_first=True)
            return
        self.out, self.table = nn.Linear(inner, width, bias=bias), nn.Parameter(torch.zeros(7, self.heads))
        if self.joint:
            self.qkv = nn.Linear(width, inner + 2 * shared, bias=bias)
        else:
            self.q = nn.Linear(width, inner, bias=bias)
            self.k, self.v = (nn.Linear(width, shared, bias=bias) for _ in range(2))

    def die(self, generator: torch.Generator) -> None:
        """No weight reads a dead head; where nothing is shared, it may have no values instead."""
        out = self.whole.out_proj if self.how == "torch" else self.out
        dead = _dies(self.heads, generator).repeat_interleave(out.weight.shape[1] // self.heads)
        out.weight[:, dead] = 0
        if self.how != "torch" and not self.rotary and bool(torch.rand(1, generator=generator) < 0.4):
            self._die_within(generator)
        if self.how == "written" and not self.joint and bool(torch.rand(1, generator=generator) < 0.3):
            self.v.weight[dead] = 0
            if self.v.bias is not None:
                self.v.bias[dead] = 0

    def _die_within(self, generator: torch.Generator) -> None:
        """Single channels of keys, and of what is read of a head, unevenly."""
        inner, shared = self.heads * self.size, self.groups * self.size
        keys = self.qkv if self.joint else self.k
        dead = torch.rand(shared, generator=generator) < 0.5
        rows = torch.arange(shared)[dead] + (inner if self.joint else 0)
        keys.weight[rows] = 0
        if keys.bias is not None:
            keys.bias[rows] = 0
        self.out.weight[:, torch.rand(inner, generator=generator) < 0.5] = 0

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if self.causal else None
        if self.how == "torch":
            y: Tensor = self.whole(x, x, x, attn_mask=mask, need_weights=False)[0]
            return y
        q, k, v = (t.view(*x.shape[:2], -1, self.size).transpose(1, 2) for t in self._projected(x))
        if self.rotary:
            q, k = _rotated(q), _rotated(k)
        return self.out(self._mixed(q, k, v, mask).transpose(1, 2).reshape(*x.shape[:2], -1))

    def _projected(self, x: Tensor) -> Any:
        if not self.joint:
            return self.q(x), self.k(x), self.v(x)
        if self.heads == self.groups:
            return self.qkv(x).chunk(3, -1)
        shared = self.groups * self.size
        return self.qkv(x).split([self.heads * self.size, shared, shared], -1)

    def _scale(self, q: Tensor) -> float:
        return {"number": 0.5, "width": q.shape[-1] ** -0.5, "attribute": 1 / math.sqrt(self.size)}[self.scale]

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if self.how == "written":
            scores = q @ k.transpose(-2, -1) * self._scale(q)
            scores = scores if mask is None else scores.masked_fill(mask, float("-inf"))
            return scores.softmax(-1) @ v
        if self.how == "biased":
            steps = torch.arange(q.shape[2])
            bias = self.table[(steps[:, None] - steps).clamp(-3, 3) + 3].permute(2, 0, 1).unsqueeze(0)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        if self.heads > self.groups:
            k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


def _rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] / (1 + torch.arange(half, dtype=x.dtype))
    cos, sin = (torch.cat([t, t], -1) for t in (angle.cos(), angle.sin()))
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class FeedForward(nn.Module):
    """Two layers, or three where one of them gates another one."""

    def __init__(self, draw: Draw, width: int) -> None:
        super().__init__()
        neurons, bias = draw.pick("neurons", [1, 4, 6]), draw.pick("bias", [True, False])
        self.gate = nn.Linear(width, neurons, bias=bias) if draw.pick("gated", [True, False]) else None
        self.up, self.down = nn.Linear(width, neurons, bias=bias), nn.Linear(neurons, width, bias=bias)
        self.act = draw.act()

    def die(self, generator: torch.Generator) -> None:
        """Dead neurons are not read."""
        self.down.weight[:, _dies(self.down.in_features, generator)] = 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.up(x)) if self.gate is None else self.act(self.gate(x)) * self.up(x)
        z: Tensor = self.down(y)
        return z


class Layer(nn.Module):
    """Attention and a feed-forward block, with norms in front or behind, or none."""

    def __init__(self, draw: Draw, width: int) -> None:
        super().__init__()
        self.where = draw.pick("where", ["before", "before", "after", "none"])
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.parts = nn.ModuleList([Attention(draw, width), FeedForward(draw, width)])

    def forward(self, x: Tensor) -> Tensor:
        for norm, part in zip(self.norms, self.parts, strict=True):
            y = part(norm(x) if self.where == "before" else x)
            x = norm(x + y) if self.where == "after" else x + y
        return x


class Transformer(nn.Module):
    """Pixels become a sequence and come back."""

    hard = False

    def __init__(self, draw: Draw, width: int) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(400, width)) if draw.pick("places", [True, False]) else None
        self.layers = nn.ModuleList(Layer(draw, width) for _ in range(draw.pick("depth", [1, 2])))

    def forward(self, x: Tensor) -> Tensor:
        y = x.flatten(2).transpose(1, 2)
        y = y if self.places is None else y + self.places[: y.shape[1]]
        for layer in self.layers:
            y = layer(y)
        return y.transpose(1, 2).reshape(len(x), -1, *x.shape[2:])


@block(SPATIAL)
def transformer(draw: Draw, shape: Shape) -> nn.Module:
    """For at most a few hundred pixels."""
    if math.prod(shape[2:]) > 300:
        raise MisfitError
    return Transformer(draw, shape[1])
