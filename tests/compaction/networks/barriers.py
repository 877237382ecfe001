"""Operations that need every channel, and blocks that do little."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from tests.compaction.networks.block import SPATIAL, Block, Shape, block
from tests.compaction.networks.draw import Draw, one_of


@block(SPATIAL)
def barrier(draw: Draw, shape: Shape) -> nn.Module:
    """Operations that mix channels."""
    c = shape[1]
    run = {
        "group": lambda m, x: m.act(m.group(m.norm(x))),
        "instance": lambda m, x: m.act(F.instance_norm(m.norm(x), eps=0.1)),
        "layer": lambda m, x: m.layer(m.norm(x).movedim(1, -1)).movedim(-1, 1),
        "heads": lambda m, x: x + m.heads(*[m.norm(x).flatten(2).transpose(1, 2)] * 3)[0].transpose(1, 2).view(x.shape),
        "matmul": lambda m, x: (m.square @ m.norm(x).flatten(2)).view(x.shape),
        "einsum": lambda m, x: torch.einsum("ij,nj...->ni...", m.square, m.norm(x)),
        "scores": lambda m, x: (x.flatten(2) @ (m.norm(x).flatten(2).transpose(1, 2) @ x.flatten(2)).softmax(-1)).view(
            x.shape
        ),
        "cumsum": lambda m, x: m.norm(x).cumsum(1),
        "sort": lambda m, x: m.norm(x).sort(dim=1)[0],
    }
    parts = {
        "norm": draw.norm(c),
        "act": draw.act(),
        "group": nn.GroupNorm(math.gcd(c, 2), c),
        "layer": nn.LayerNorm(c),
        "heads": nn.MultiheadAttention(c, math.gcd(c, 2), batch_first=True),
        "square": nn.Parameter(torch.ones(c, c)),
    }
    # nn.MultiheadAttention insists on its embed_dim
    return one_of(draw, run, hard={"heads", "matmul"}, **parts)


@block(SPATIAL)
def alone(draw: Draw, shape: Shape) -> nn.Module:
    """No layer with weights."""
    c = shape[1]
    run: dict[str, Callable[[], nn.Module]] = {
        "act": draw.act,
        "norm": lambda: draw.norm(c),
        "norm act": lambda: nn.Sequential(draw.norm(c), draw.act()),
        "dropout": lambda: nn.Sequential(draw.norm(c), nn.Dropout(0.5), nn.Identity(), draw.kind("Dropout")(0.5)),
        "clone": lambda: Block(lambda m, x: m.norm(x).clone().contiguous().detach(), norm=draw.norm(c)),
        "norms": lambda: nn.Sequential(draw.norm(c), draw.norm(c)),
        "self update": lambda: Block(lambda m, x: m.norm(x) + m.act(m.norm(x)), norm=draw.norm(c), act=draw.act()),
    }
    return run[draw.pick("how", list(run))]()
