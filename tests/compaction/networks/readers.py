"""Code that looks at its modules, and hooks."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.compaction.networks.block import SPATIAL, Block, Shape, block
from tests.compaction.networks.draw import Draw, one_of


def _same_padding(m: Any, x: Tensor) -> Tensor:
    sides: list[int] = []
    for size, stride, kernel in zip(x.shape[2:], m.conv.stride, m.conv.kernel_size, strict=True):
        missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        sides = [missing // 2, missing - missing // 2, *sides]
    y: Tensor = m.norm(m.conv(F.pad(x, sides)))
    return y


def _loop(m: Any, x: Tensor) -> Tensor:
    seen = []
    for layer in m.layers:
        x = layer(x if layer.f == -1 else seen[layer.f] + x)
        seen.append(x)
    return x


def _tagged(m: Any, x: Tensor) -> Tensor:
    for layer in m.layers:
        x = x + layer(x) if layer.i != 1 else layer(x)
    return x


@block(SPATIAL)
def readers(draw: Draw, shape: Shape) -> nn.Module:
    """Attributes of layers that may be gone."""
    c = shape[1]
    run = {
        "stride": _same_padding,
        "dtype": lambda m, x: x + m.norm(m.conv(x.to(m.conv.weight.dtype))),
        "device": lambda m, x: m.norm(m.same(x)).to(m.same.weight.device) + x,
        "bias": lambda m, x: m.norm(m.same(x)) + (x if m.same.bias is None else m.act(x)),
        "training": lambda m, x: x if m.norm.training else m.norm(x) + x,
        "kind": lambda m, x: m.norm(m.same(x)) + x if isinstance(m.norm, nn.Module) else x,
        "length": lambda m, x: m.layers[len(m.layers) - 1](m.layers[0](x)) + x,
        "loop": _loop,
        "tagged": _tagged,
        "eps": lambda m, x: m.last(x) + x * getattr(m.last, "eps", 1.0),
        "width": lambda m, x: x + m.norm(m.same(x)) / m.same.out_channels,
        "names": lambda m, x: sum((layer(x) for _, layer in m.layers.named_children()), start=x),
        "apart": lambda m, x: m.act(m.same.forward(x)) + m.norm(x) * getattr(m.norm, "momentum", 1.0),
    }
    layers = nn.ModuleList([draw.conv(c, c), nn.Sequential(draw.conv(c, c), draw.norm(c)), nn.Sequential(draw.norm(c))])
    for index, layer in enumerate(layers):
        layer.i, layer.f = index, -1 if index < 2 else 0
    dead = draw.norm(c)
    dead.rate = 1.0
    parts = {
        "conv": draw.conv(
            c, c, kernel_size=3, padding=draw.pick("padding", [0, 1]), stride=draw.pick("stride", [1, 2])
        ),
        "same": draw.conv(c, c, kernel_size=3, padding=1),
        "norm": dead if draw.pick("dead", [True, False]) else draw.norm(c),
        "last": draw.kind("BatchNorm")(c),
        "layers": layers,
        "act": draw.act(),
    }
    parts["last"].sparse, parts["last"].rate, parts["last"].shifts = False, draw.pick("rate", [0.5, 1.0]), True
    return one_of(draw, run, hard={"width", "bias"}, **parts)


@block(SPATIAL)
def hooked(draw: Draw, shape: Shape) -> nn.Module:
    """Hooks that keep tensors in closures, return new ones, or change what goes in."""
    c, wide = shape[1], draw.width()
    conv, norm, after = draw.conv(c, wide), draw.norm(wide), draw.conv(wide, c)
    seen: dict[str, Tensor] = {}
    how = draw.pick("how", ["closure", "attribute", "output", "input", "method", "lambda"])

    def run(m: Any, x: Tensor) -> Tensor:
        y = m.norm(m.conv(x))
        if how == "closure":
            y = seen["norm"]
        elif how == "attribute":
            y = m.norm.kept
        elif how == "method":
            y = y + m.kept["conv"]
        elif how == "lambda":
            y = m.head(y)
        z: Tensor = m.after(m.act(y))
        return z

    made = Block(run, conv=conv, norm=norm, after=after, act=draw.act())
    # the hooks of a layer that leaves go with it, and then what they kept is missed
    made.hard = how in {"closure", "attribute", "method"}
    if how == "closure":
        norm.register_forward_hook(lambda m, i, o: seen.update(norm=o))
    elif how == "attribute":
        norm.register_forward_hook(lambda m, i, o: object.__setattr__(m, "kept", o))
    elif how == "output":
        norm.register_forward_hook(lambda m, i, o: o * 0.5 + 0.1)
    elif how == "input":
        norm.register_forward_pre_hook(lambda m, i: (torch.relu(i[0]),))
    elif how == "method":
        made.kept = {}  # type: ignore[assignment]
        conv.register_forward_hook(lambda m, i, o: made.kept.update(conv=o))  # type: ignore[operator]
    else:
        made.head = lambda y: made.norm(y) + y  # type: ignore[assignment, operator]
    return made
