"""Products between tensors, and operators that move channels in less usual ways."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.compaction.networks.block import FLAT, SPATIAL, Block, MisfitError, Shape, block
from tests.compaction.networks.draw import Draw, one_of


@block(SPATIAL)
def heads(draw: Draw, shape: Shape) -> nn.Module:
    """Attention between pixels, written out in several ways."""
    c, count = shape[1], draw.pick("heads", [1, 1, 2])
    wide = count * draw.pick("each", [1, 2, 3, 4])
    names = ("q", "k", "v")
    parts: dict[str, Any] = {name: nn.Sequential(draw.conv(c, wide, kernel_size=1), draw.norm(wide)) for name in names}
    parts["out"] = nn.Sequential(draw.conv(wide, c, kernel_size=1), draw.norm(c))

    def split(m: Any, x: Tensor) -> list[Tensor]:
        return [getattr(m, name)(x).reshape(len(x), count, -1, math.prod(x.shape[2:])) for name in names]

    def dot(m: Any, x: Tensor) -> Tensor:
        q, k, v = split(m, x)
        return v @ (q.transpose(-2, -1) @ k).softmax(-2)

    def fused(m: Any, x: Tensor) -> Tensor:
        q, k, v = (t.transpose(-2, -1) for t in split(m, x))
        return F.scaled_dot_product_attention(q, k, v, scale=0.5).transpose(-2, -1)

    def summed(m: Any, x: Tensor) -> Tensor:
        q, k, v = split(m, x)
        return torch.einsum("nhdk,nhqk->nhdq", v, torch.einsum("nhdq,nhdk->nhqk", q, k).softmax(-1))

    def linear(m: Any, x: Tensor) -> Tensor:
        q, k, v = split(m, x)
        return torch.matmul(torch.matmul(v, k.softmax(-1).transpose(-2, -1)), q.softmax(-2))

    def batched(m: Any, x: Tensor) -> Tensor:
        q, k, v = (t.flatten(0, 1) for t in split(m, x))
        return torch.bmm(v, torch.bmm(k.transpose(1, 2), q).softmax(1)).view(len(x), count, -1, q.shape[-1])

    ways = {"dot": dot, "fused": fused, "einsum": summed, "linear": linear, "bmm": batched}
    how = draw.pick("how", list(ways))
    made = Block(lambda m, x: x + m.out(ways[how](m, x).reshape(len(x), -1, *x.shape[2:])), **parts)
    # unequal heads cannot be cut alike, and a softmax over channels needs them all
    made.hard = count > 1
    return made


@block(SPATIAL)
def moves(draw: Draw, shape: Shape) -> nn.Module:
    """Operators that take channels along, each with its own way of saying which dimension is theirs."""
    c, d, wide = shape[1], draw.dims, 2 * draw.pick("half", [1, 2, 3])

    def written(m: Any, x: Tensor) -> Tensor:
        y = x.new_zeros(x.shape[0], x.shape[1] + 2, *x.shape[2:])
        y[:, : x.shape[1]] = m.norm(x)
        return y

    def shifted(m: Any, x: Tensor) -> Tensor:
        y, out, fold = m.norm(x), torch.zeros_like(x), max(c // 4, 1)
        out[:, :fold, ..., 1:] = y[:, :fold, ..., :-1]
        out[:, fold:] = y[:, fold:]
        return out

    def sampled(m: Any, x: Tensor) -> Tensor:
        y = m.norm(x)
        theta = torch.eye(2, 3, dtype=x.dtype).expand(len(x), 2, 3) + 0.1 * x.mean()
        return F.grid_sample(
            y, F.affine_grid(theta, [len(x), 1, *y.shape[2:]], align_corners=False), align_corners=False
        )

    def unpooled(m: Any, x: Tensor) -> Tensor:
        y, index = F.max_pool2d(m.norm(x), 2, return_indices=True)
        return F.max_unpool2d(m.act(y), index, 2, output_size=x.shape[2:])

    run = {
        "glu": lambda m, x: F.glu(m.wide_norm(m.wide(x)), 1),
        "glu module": lambda m, x: m.glu(m.wide_norm(m.wide(x))),
        "max": lambda m, x: m.norm(x).max(2, keepdim=True)[0] + x,
        "min": lambda m, x: m.norm(x).min(-1, keepdim=True).values * x,
        "repeat": lambda m, x: torch.cat([x, m.norm(x).mean(-1, keepdim=True).repeat(*[1] * (d + 1), x.shape[-1])], 1),
        "repeat channels": lambda m, x: m.norm(x).repeat(1, 2, *[1] * d),
        "interleave": lambda m, x: m.norm(x).repeat_interleave(2, 1),
        "hstack": lambda m, x: torch.hstack([m.norm(x), x]),
        "cat pixels": lambda m, x: torch.cat([m.norm(x), x], -1),
        "cat batch": lambda m, x: torch.cat([m.norm(x), x]).chunk(2)[0],
        "like": lambda m, x: m.norm(x).flatten(2).reshape_as(x),
        "view as": lambda m, x: m.act(m.norm(x).flatten(2)).view_as(x),
        "instance": lambda m, x: m.instance(m.norm(x)),
        "group": lambda m, x: F.group_norm(m.norm(x), c),
        "written": written,
        "shifted": shifted,
        "padded": lambda m, x: F.pad(m.norm(x), [0] * 2 * d + [1, 1]),
        "stacked": lambda m, x: torch.stack([m.norm(x), x], 2).sum(2),
        "expand": lambda m, x: m.norm(x).mean(-1, keepdim=True).expand_as(x) + x,
        "roll": lambda m, x: m.norm(x).roll(1, -1),
        "flip": lambda m, x: m.norm(x).flip(-1),
        "tile": lambda m, x: m.norm(x).tile(2),
        "depthwise": lambda m, x: m.deep(m.norm(x)),
    }
    if d == 2:
        run |= {"sampled": sampled, "unpooled": unpooled}
        run["unfold"] = lambda m, x: F.fold(F.unfold(m.norm(x), 3, padding=1), tuple(x.shape[2:]), 3, padding=1)
    mode = draw.pick("mode", ["circular", "reflect", "replicate"]) if d < 3 else "circular"
    parts = {
        "norm": draw.norm(c),
        "wide": draw.conv(c, wide),
        "wide_norm": draw.norm(wide),
        "glu": nn.GLU(1),
        "act": draw.act(),
        "instance": draw.kind("InstanceNorm")(c, affine=True, eps=0.1),
        "deep": draw.kind("Conv")(c, c, 3, padding=1, groups=c, padding_mode=mode),
    }
    # "written" counts channels, and where the maximum of a constant lies hangs on rounding
    return one_of(draw, run, hard={"group", "written", "unpooled"}, **parts)


@block(SPATIAL)
def points(draw: Draw, shape: Shape) -> nn.Module:
    """Steps for a recurrent layer, a matrix for the features, the largest of all pixels."""
    c, wide = shape[1], draw.width()
    if c > 12:
        raise MisfitError
    run = {
        "lstm": lambda m, x: m.lstm(m.norm(x).flatten(2).transpose(1, 2))[0].transpose(1, 2),
        "gru first": lambda m, x: m.gru(m.norm(x).flatten(2).permute(2, 0, 1))[0].permute(1, 2, 0),
        "matrix": lambda m, x: torch.bmm(
            m.square(m.norm(x).flatten(2).amax(2)).view(len(x), c, c), m.norm(x).flatten(2)
        ),
        "largest": lambda m, x: x.flatten(2) + torch.max(m.norm(x).flatten(2), 2, keepdim=True)[0],
        "addmm": lambda m, x: torch.addmm(m.bias, m.norm(x).flatten(2).amax(2), m.weight).unsqueeze(2),
        "weights": lambda m, x: (m.norm(x).flatten(2).transpose(1, 2) @ m.weight).transpose(1, 2),
        "left": lambda m, x: m.weight.t() @ m.norm(x).flatten(2),
        "einsum": lambda m, x: torch.einsum("ncp,cd->ndp", m.norm(x).flatten(2), m.weight),
    }
    parts = {
        "norm": draw.norm(c),
        "lstm": nn.LSTM(c, 3, batch_first=True),
        "gru": nn.GRU(c, 2),
        "square": nn.Linear(c, c * c),
        "weight": nn.Parameter(torch.ones(c, wide)),
        "bias": nn.Parameter(torch.ones(wide)),
    }
    return one_of(draw, run, hard={"matrix"}, **parts)


@block(FLAT)
def linear_products(draw: Draw, shape: Shape) -> nn.Module:
    """Products of rows."""
    c, wide = shape[1], draw.width()
    run = {
        "addmm": lambda m, x: torch.addmm(m.bias, m.norm(x), m.weight),
        "matmul": lambda m, x: m.act(m.norm(x)) @ m.weight + m.bias,
        "einsum": lambda m, x: torch.einsum("ni,io->no", m.norm(x), m.weight),
        "group": lambda m, x: m.group(m.norm(x)),
        "glu": lambda m, x: F.glu(torch.cat([m.norm(x), x], 1), 1),
        "max": lambda m, x: torch.maximum(m.norm(x), x) * x.max(1, keepdim=True)[0].tanh(),
        "hstack": lambda m, x: torch.hstack([m.norm(x), m.act(x)]),
        "bilinear": lambda m, x: (m.norm(x) @ m.square * x).sum(1, keepdim=True) + x,
        "layer": lambda m, x: x + m.two(m.act(m.one(m.layer(m.norm(x))))),
    }
    parts = {
        "norm": draw.norm(c),
        "act": draw.act(),
        "weight": nn.Parameter(torch.ones(c, wide)),
        "bias": nn.Parameter(torch.ones(wide)),
        "square": nn.Parameter(torch.ones(c, c)),
        "group": nn.GroupNorm(1, c),
        "layer": nn.LayerNorm(c),
        "one": nn.Linear(c, wide),
        "two": nn.Linear(wide, c),
    }
    return one_of(draw, run, **parts)
