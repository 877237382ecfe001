"""Random small networks for the property test of compaction.

A network is a `Spec`: plain data, drawn from one integer. Each block of it has a kind and a seed of its own; what
else a block draws (widths, strides, activations, ...) can be given in the block, so that a failing case can be made
smaller and simpler and still be written down. Blocks that do not fit the shape that reaches them are left out.
"""

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse import sparsify
from diffsparse.nn import SparseBatchNorm

BlockSpec = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A network as plain data."""

    seed: int
    dims: int
    """Spatial dimensions of the input; 0 for rows of features."""
    channels: int
    size: int
    blocks: tuple[BlockSpec, ...]
    returns: str = "tensor"
    """`tensor`, `tuple`, `dict` or `dataclass`."""
    training: bool = False
    """Whether the model is in training mode when it is compacted."""
    round_to: int = 1
    fold: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Spec":
        data = json.loads(text)
        return cls(**{**data, "blocks": tuple(data["blocks"])})


class Block(nn.Module):
    """A function of itself and its inputs; the function must reach parts only through its first argument."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module | nn.Parameter | Tensor) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.run(self, *inputs)


class MisfitError(Exception):
    """The block does not fit what reaches it."""


@dataclass
class Draw:
    """What one block draws: each name from its own stream, unless the specification gives it."""

    given: BlockSpec
    dims: int
    made: dict[str, Any] = field(default_factory=dict)

    def pick(self, name: str, choices: list[Any]) -> Any:
        key, count = name, 1
        while key in self.made:
            count += 1
            key = f"{name}{count}"
        self.made[key] = self.given.get(key, random.Random(f"{self.given['seed']}/{key}").choice(choices))
        return self.made[key]

    def width(self) -> int:
        return int(self.pick("width", [1, 2, 3, 4, 4, 5, 6, 6, 8, 8, 12]))

    def kind(self, stem: str) -> Any:
        return getattr(nn, f"{stem}{self.dims}d")

    def call(self, stem: str) -> Any:
        return getattr(F, f"{stem}{self.dims}d")

    def conv(self, inputs: int, outputs: int, **settings: Any) -> nn.Module:
        """A convolution; what `settings` leave open is drawn."""
        bias = self.pick("bias", [True, False])
        if "kernel_size" not in settings:
            settings["kernel_size"] = self.pick("kernel", [1, 3, 3, 3])
            settings["padding"] = settings["kernel_size"] // 2
        groups = math.gcd(settings.pop("groups", 1), math.gcd(inputs, outputs))
        conv: nn.Module = self.kind("Conv")(inputs, outputs, bias=bias, groups=groups, **settings)
        return conv

    def norm(self, channels: int) -> nn.Module:
        what = self.pick("norm", ["plain", "plain", "plain", "sparse", "sparse", "sparse", "bare", "own", "none"])
        if what == "none":
            return nn.Identity()
        maker = nn.BatchNorm1d if self.dims == 0 else self.kind("BatchNorm")
        norm: nn.Module = maker(channels, affine=what != "bare", track_running_stats=what != "own")
        norm.sparse = what == "sparse"  # type: ignore[assignment]
        norm.rate = self.pick("rate", [0.0, 0.3, 0.5, 0.5, 0.9, 1.0])
        norm.shifts = self.pick("shifts", [True, False])
        return norm

    def act(self) -> nn.Module:
        return activation(self.pick("act", list(ACTIVATIONS)), self)


def _expneg(_: Block, x: Tensor) -> Tensor:
    return torch.exp(-x).clamp(max=4.0)


def _in_place(_: Block, x: Tensor) -> Tensor:
    x *= 0.7
    return x.add_(0.3).relu_()


ACTIVATIONS: dict[str, Callable[..., Any] | None] = {
    **dict.fromkeys(["ReLU", "ReLUInPlace", "GELU", "SiLU", "Sigmoid", "Softplus", "Hardswish", "PReLU", "PReLUEach"]),
    "none": lambda _, x: x,
    "relu": lambda _, x: F.relu(x),
    "relu2": lambda _, x: torch.relu(x),
    "relu_": lambda _, x: x.relu_(),
    "relu inplace": lambda _, x: F.relu(x, inplace=True),
    "leaky": lambda _, x: F.leaky_relu(x, 0.1),
    "tanh": lambda _, x: x.tanh(),
    "sigmoid": lambda _, x: torch.sigmoid(x),
    "hardsigmoid": lambda _, x: F.hardsigmoid(x),
    "softplus": lambda _, x: F.softplus(x),
    "expneg": _expneg,
    "cos": lambda _, x: torch.cos(x),
    "swish": lambda _, x: x * torch.sigmoid(x),
    "one minus": lambda _, x: 1 - x,
    "plus": lambda _, x: x + 0.5,
    "in place": _in_place,
    "ratio": lambda _, x: 2 / (1 + x * x),
    "square": lambda _, x: (x**2).clamp(max=5.0),
    "where": lambda _, x: torch.where(x > 0, x, 0.1 * x + 0.2),
    "fill": lambda _, x: x.masked_fill(x < 0, 0.5),
    "maximum": lambda _, x: torch.maximum(x, 0.5 * x - 0.25),
    "softmax": lambda _, x: torch.softmax(x, dim=1),
    "normalize": lambda _, x: F.normalize(x, dim=1, eps=0.1),
}


def activation(name: str, draw: Draw) -> nn.Module:
    run = ACTIVATIONS[name]
    if run is not None:
        return Block(run)
    if name == "ReLUInPlace":
        return nn.ReLU(inplace=True)
    module: nn.Module = getattr(nn, name.removesuffix("Each"))()
    return module


SPATIAL: dict[str, Callable[[Draw, tuple[int, ...]], nn.Module]] = {}
FLAT: dict[str, Callable[[Draw, tuple[int, ...]], nn.Module]] = {}
HARD: set[str] = set()
"""Kinds of block whose code has sizes written into it, or does arithmetic with the number of channels."""


def block(where: dict[str, Callable[..., nn.Module]], hard: bool = False) -> Callable[[Any], Any]:
    """Make a function of a draw and the shape that reaches it a kind of block."""

    def add(make: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        name = make.__name__.strip("_")
        where[name] = make
        if hard:
            HARD.add(name)
        return make

    return add


# Convolutions ---------------------------------------------------------------------------------------------------------


@block(SPATIAL)
def conv(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
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
def chain(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    layers, width = [], shape[1]
    for _ in range(draw.pick("length", [2, 3])):
        new = draw.width()
        layers += [draw.conv(width, new), draw.norm(new), draw.act()]
        width = new
    return nn.Sequential(*layers)


@block(SPATIAL)
def depthwise(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    wide, outputs = shape[1] * draw.pick("multiplier", [1, 1, 2]), draw.width()
    stride = draw.pick("stride", [1, 1, 2])
    deep = draw.conv(
        shape[1], wide, groups=shape[1], kernel_size=3, padding=draw.pick("padding", [0, 1]), stride=stride
    )
    point = draw.conv(wide, outputs, kernel_size=1)
    return nn.Sequential(draw.norm(shape[1]), deep, draw.norm(wide), draw.act(), point, draw.norm(outputs), draw.act())


@block(SPATIAL)
def grouped(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    groups = draw.pick("groups", [2, 3, 4])
    wide = groups * draw.pick("wide", [1, 2, 3])
    first, second = draw.conv(shape[1], wide), draw.conv(wide, groups * draw.pick("out", [1, 2, 3]), groups=groups)
    return nn.Sequential(first, draw.norm(wide), draw.act(), second, draw.norm(second.out_channels), draw.act())


@block(SPATIAL)
def transposed(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    groups = math.gcd(draw.pick("groups", [1, 1, 2, 3]), shape[1])
    outputs, stride = groups * draw.pick("wide", [1, 2, 3]), draw.pick("stride", [1, 2])
    settings = {"kernel_size": draw.pick("kernel", [2, 3]), "padding": draw.pick("padding", [0, 1]), "stride": stride}
    extra = draw.pick("extra", [0, 1]) if stride == 2 else 0
    bias = draw.pick("bias", [True, False])
    up = draw.kind("ConvTranspose")(shape[1], outputs, groups=groups, output_padding=extra, bias=bias, **settings)
    return nn.Sequential(draw.norm(shape[1]), draw.act(), up, draw.norm(outputs), draw.act())


@block(SPATIAL)
def twice(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
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
def functional(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
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


# Streams and branches -------------------------------------------------------------------------------------------------


@block(SPATIAL)
def post_residual(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    stride, middle = draw.pick("stride", [1, 1, 2]), draw.width()
    project = draw.pick("project", [True, False, False]) or stride > 1
    outputs = draw.width() if project else shape[1]
    first = draw.conv(shape[1], middle, kernel_size=3, padding=1, stride=stride)
    body = nn.Sequential(first, draw.norm(middle), draw.act(), draw.conv(middle, outputs), draw.norm(outputs))
    short: nn.Module = nn.Identity()
    if project:
        short = nn.Sequential(draw.conv(shape[1], outputs, kernel_size=1, stride=stride), draw.norm(outputs))
    return Block(lambda m, x: m.act(m.body(x) + m.short(x)), body=body, short=short, act=draw.act())


@block(SPATIAL)
def pre_residual(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    stride, middle = draw.pick("stride", [1, 1, 2]), draw.width()
    project = draw.pick("project", [None, None, "raw", "active"]) or ("raw" if stride > 1 else None)
    outputs = draw.width() if project else shape[1]
    parts: dict[str, nn.Module] = {
        "norm1": draw.norm(shape[1]),
        "conv1": draw.conv(shape[1], middle, kernel_size=1),
        "norm2": draw.norm(middle),
        "conv2": draw.conv(middle, outputs, kernel_size=3, padding=1, stride=stride),
        "act": draw.act(),
    }
    if project:
        parts["short"] = draw.conv(shape[1], outputs, kernel_size=1, stride=stride)
    added_in_place = draw.pick("augmented", [False, False, True])

    def run(m: Any, x: Tensor) -> Tensor:
        stream = x
        if project == "raw":
            stream = m.short(x)
        y = m.act(m.norm1(x))
        if project == "active":
            stream = m.short(y)
        y = m.conv2(m.act(m.norm2(m.conv1(y))))
        if added_in_place:
            y += stream
            return y
        return stream + y

    return Block(run, **parts)


@block(SPATIAL)
def stage(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    """Pre-activation blocks on one stream."""
    blocks = []
    for _ in range(draw.pick("length", [2, 3])):
        middle = draw.width()
        body = [draw.norm(shape[1]), draw.act(), draw.conv(shape[1], middle), draw.norm(middle), draw.act()]
        blocks.append(Block(lambda m, x: x + m.body(x), body=nn.Sequential(*body, draw.conv(middle, shape[1]))))
    return nn.Sequential(*blocks, draw.norm(shape[1]))


@block(SPATIAL)
def dense(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    growth, width, layers = draw.pick("growth", [1, 2, 3]), shape[1], []
    for _ in range(draw.pick("length", [2, 3])):
        body = nn.Sequential(draw.norm(width), draw.act(), draw.conv(width, growth))
        layers.append(Block(lambda m, x: torch.cat([x, m.body(x)], 1), body=body))
        width += growth
    return nn.Sequential(*layers, draw.norm(width), draw.act())


@block(SPATIAL)
def inception(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    widths = [draw.pick("branch", [1, 2, 3, 4]) for _ in range(3)]
    one = nn.Sequential(draw.conv(shape[1], widths[0], kernel_size=1), draw.norm(widths[0]))
    three = nn.Sequential(draw.norm(shape[1]), draw.act(), draw.conv(shape[1], widths[1], kernel_size=3, padding=1))
    pool = draw.kind(draw.pick("pool", ["MaxPool", "AvgPool"]))(3, stride=1, padding=1)
    pooled = nn.Sequential(pool, draw.conv(shape[1], widths[2], kernel_size=1), draw.norm(widths[2]), draw.act())
    bare = draw.pick("with input", [False, True])

    def run(m: Any, x: Tensor) -> Tensor:
        parts = [m.one(x), m.three(x), m.pooled(x)]
        return torch.cat([*parts, x] if bare else parts, dim=1)

    return Block(run, one=one, three=three, pooled=pooled)


@block(SPATIAL)
def squeeze(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    c, middle, d = shape[1], draw.pick("middle", [1, 2, 4]), draw.dims
    style, gate = draw.pick("style", ["conv", "linear", "mean"]), draw.act()
    first, second = draw.conv(c, middle, kernel_size=1), draw.conv(middle, c, kernel_size=1)
    if style == "linear":
        first, second = nn.Linear(c, middle), nn.Linear(middle, c)
    pool, dims = draw.call("adaptive_avg_pool"), tuple(range(2, 2 + d))

    def run(m: Any, x: Tensor) -> Tensor:
        x = m.norm(x)
        if style == "linear":
            s = torch.sigmoid(m.second(m.gate(m.first(pool(x, 1).flatten(1)))))
            return x * s.view(s.shape[0], s.shape[1], *[1] * d)
        s = x.mean(dims, keepdim=True) if style == "mean" else pool(x, 1)
        return x * F.hardsigmoid(m.second(m.gate(m.first(s))))

    return Block(run, norm=draw.norm(c), first=first, second=second, gate=gate)


@block(SPATIAL)
def gates(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    outputs = draw.width()
    left = nn.Sequential(draw.conv(shape[1], outputs), draw.norm(outputs), draw.act())
    right = nn.Sequential(draw.conv(shape[1], outputs), draw.norm(outputs), draw.act())
    run = {
        "mul": lambda m, x: m.left(x) * torch.sigmoid(m.right(x)),
        "mul raw": lambda m, x: m.left(x) * m.right(x),
        "sub": lambda m, x: m.left(x) - m.right(x),
        "mix": lambda m, x: torch.add(m.left(x), m.right(x), alpha=0.5),
        "stack": lambda m, x: torch.stack([m.left(x), m.right(x)]).sum(0),
        "max": lambda m, x: torch.maximum(m.left(x), m.right(x)),
        "lerp": lambda m, x: torch.lerp(m.left(x), m.right(x), 0.3),
        "glu": lambda m, x: F.glu(torch.cat([m.left(x), m.right(x)], 1), 1),
    }
    return Block(run[draw.pick("how", list(run))], left=left, right=right)


@block(SPATIAL)
def attention(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    """One map for all channels."""
    parts = {"norm": draw.norm(shape[1]), "conv": draw.conv(shape[1], 1), "act": draw.act(), "one": draw.norm(1)}
    run = {
        "mul": lambda m, x: m.norm(x) * m.act(m.one(m.conv(x))),
        "add": lambda m, x: m.act(m.one(m.conv(x))) + m.norm(x),
        "channel max": lambda m, x: m.norm(x) * x.amax(1, keepdim=True).tanh(),
        "channel mean": lambda m, x: m.norm(x) - m.norm(x).mean(1, keepdim=True),
        "max": lambda m, x: m.norm(x) + m.act(x).max(dim=1, keepdim=True)[0],
    }
    return Block(run[draw.pick("how", list(run))], **parts)


@block(SPATIAL)
def itself(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    run = {
        "cat": lambda m, x: torch.cat([x, x], 1),
        "cat act": lambda m, x: torch.cat((x, m.act(m.norm(x))), dim=1),
        "crelu": lambda m, x: torch.relu(torch.cat([m.norm(x), -m.norm(x)], dim=-1 - m.dims)),
        "add": lambda m, x: m.norm(x) + x,
        "add twice": lambda m, x: x + x,
        "mul": lambda m, x: x * x,
        "sub": lambda m, x: m.norm(x) - m.norm(x) + x,
    }
    made = Block(run[draw.pick("how", list(run))], norm=draw.norm(shape[1]), act=draw.act())
    made.dims = draw.dims  # type: ignore[assignment]
    return made


@block(SPATIAL)
def second(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    """Takes in the model's second input."""
    c, pool = shape[1], draw.call("adaptive_avg_pool")
    run = {
        "add": lambda m, x, y: x + m.norm(m.conv(pool(y, 1))),
        "mul": lambda m, x, y: x * torch.sigmoid(m.norm(m.conv(pool(y, 1)))),
        "cat": lambda m, x, y: torch.cat([x, pool(m.norm(m.conv(y)), tuple(x.shape[2:]))], 1),
        "raw": lambda m, x, y: torch.cat([m.norm(x), pool(y, tuple(x.shape[2:]))], 1),
    }
    made = Block(run[draw.pick("how", list(run))], conv=draw.conv(draw.given["channels"], c), norm=draw.norm(c))
    made.takes_second = True  # type: ignore[assignment]
    return made


# Splits, shuffles, reshapes -------------------------------------------------------------------------------------------


@block(SPATIAL)
def split(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    c = shape[1]
    if c < 2:
        raise MisfitError
    k = draw.pick("at", [1, 2, 3]) % (c - 1) + 1
    cuts: dict[str, Callable[[Tensor], Any]] = {
        "split": lambda x: x.split([k, c - k], 1),
        "torch.split": lambda x: torch.split(x, [k, x.shape[1] - k], dim=1),
        "slice": lambda x: (x[:, :k], x[:, k:]),
        "narrow": lambda x: (x.narrow(1, 0, k), x.narrow(1, k, c - k)),
        "chunk": lambda x: x.chunk(2, dim=1),
        "tensor_split": lambda x: torch.tensor_split(x, 2, dim=1),
    }
    how = draw.pick("how", list(cuts))
    left = -(-c // 2) if how in {"chunk", "tensor_split"} else k
    cut, ends = cuts[how], draw.pick("ends", ["cat", "shuffle", "first"])
    parts = {"left": nn.Sequential(draw.conv(left, left), draw.norm(left)), "norm": draw.norm(c), "act": draw.act()}

    def run(m: Any, x: Tensor) -> Tensor:
        a, b = cut(m.norm(x))
        if ends == "first":
            return m.act(m.left(a))
        return torch.cat([m.act(m.left(a)), b] if ends == "cat" else [b, m.left(a)], 1)

    return Block(run, **parts)


@block(SPATIAL)
def part(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    k = draw.pick("at", [1, 2, 3])
    if shape[1] <= k:
        raise MisfitError
    index = torch.arange(shape[1]).flip(0)[:k]
    run = {
        "front": lambda m, x: m.norm(x)[:, :k],
        "back": lambda m, x: m.norm(x)[:, k:],
        "step": lambda m, x: m.norm(x)[:, ::2],
        "index": lambda m, x: m.norm(x).index_select(1, m.index),
        "list": lambda m, x: m.norm(x)[:, m.index],
        "flip": lambda m, x: m.norm(x).flip(1),
        "roll": lambda m, x: m.norm(x).roll(k, 1),
        "ellipsis": lambda m, x: m.norm(x)[:, -k:, ...],
        "pixels": lambda m, x: m.norm(x)[..., 1:],
        "one": lambda m, x: m.norm(x)[:, k].unsqueeze(1),
        "none": lambda m, x: m.norm(x)[:, None].squeeze(1),
        "unbind": lambda m, x: torch.stack(m.norm(x).unbind(1)[:k], 1),
    }
    return Block(run[draw.pick("how", list(run))], norm=draw.norm(shape[1]), index=index)


@block(SPATIAL)
def shuffle(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    groups = math.gcd(shape[1], draw.pick("groups", [2, 3, 4]))
    if groups == 1:
        raise MisfitError

    def by_shape(m: Any, x: Tensor) -> Tensor:
        n, c, *rest = m.norm(x).shape
        return m.norm(x).view(n, groups, c // groups, *rest).transpose(1, 2).reshape(n, c, *rest)

    if draw.pick("how", ["shape", "module"]) == "module" and draw.dims == 2:
        return nn.Sequential(draw.norm(shape[1]), nn.ChannelShuffle(groups), draw.act())
    return Block(by_shape, norm=draw.norm(shape[1]))


@block(SPATIAL)
def pixels(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    if draw.dims != 2:
        raise MisfitError
    how = draw.pick("how", ["up", "up", "down"])
    if how == "up":
        outputs = draw.pick("out", [1, 2, 3])
        layers = [draw.conv(shape[1], outputs * 4), draw.norm(outputs * 4), nn.PixelShuffle(2)]
        return nn.Sequential(*layers, draw.norm(outputs), draw.act())
    crop = Block(lambda m, x: x[..., : x.shape[2] // 2 * 2, : x.shape[3] // 2 * 2])
    return nn.Sequential(draw.norm(shape[1]), crop, nn.PixelUnshuffle(2), draw.conv(shape[1] * 4, draw.width()))


@block(SPATIAL, hard=True)
def reshapes(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    _, c, *rest = shape
    run = {
        "hard": lambda m, x: m.act(m.norm(x).view(x.shape[0], c, math.prod(rest))).view(x.shape[0], c, *rest),
        "half": lambda m, x: m.act(m.norm(x).reshape(x.shape[0], c, -1)).view(x.shape),
        "free": lambda m, x: m.act(m.norm(x).flatten(2)).view(x.shape[0], -1, *x.shape[2:]),
        "over sqrt": lambda m, x: m.act(m.norm(x)) / math.sqrt(m.norm(x).shape[1]),
        "over pixels": lambda m, x: m.act(m.norm(x)) / x.shape[2],
        "over mean": lambda m, x: m.act(m.norm(x)) * float(x.detach().mean()),
        "if": lambda m, x: m.norm(x) if m.norm(x).shape[1] == c else m.act(x),
        "new": lambda m, x: torch.cat([m.norm(x), x.new_ones(x.shape[0], 1, *x.shape[2:])], 1),
        "ones": lambda m, x: m.act(m.norm(x) * x.new_ones(c, *[1] * len(rest))),
        "full": lambda m, x: m.act(m.norm(x)) + torch.full_like(x, 0.25),
    }
    return Block(run[draw.pick("how", list(run))], norm=draw.norm(c), act=draw.act())


@block(SPATIAL)
def last(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    """Channels moved last for linear layers, as in ConvNeXt."""
    c, wide, norm = shape[1], draw.width(), draw.pick("inner", ["none", "layer"])
    parts = {
        "norm": draw.norm(c),
        "inner": nn.LayerNorm(c) if norm == "layer" else nn.Identity(),
        "one": nn.Linear(c, wide, bias=draw.pick("bias", [True, False])),
        "two": nn.Linear(wide, c),
        "act": draw.act(),
        "gamma": nn.Parameter(torch.ones(c)),
    }
    if draw.made["act"] in {"softmax", "normalize"}:
        parts["act"] = nn.GELU()
    return Block(
        lambda m, x: x + (m.gamma * m.two(m.act(m.one(m.inner(m.norm(x).movedim(1, -1)))))).movedim(-1, 1), **parts
    )


# Everything else on images --------------------------------------------------------------------------------------------


@block(SPATIAL)
def pool(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
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
    return Block(run[draw.pick("how", list(run))], norm=draw.norm(shape[1]), act=draw.act())


@block(SPATIAL)
def resize(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    smooth = ["linear", "bilinear", "trilinear"][draw.dims - 1]
    run = {
        "nearest": lambda m, x: F.interpolate(m.act(m.norm(x)), scale_factor=2),
        "smooth": lambda m, x: F.interpolate(m.norm(x), scale_factor=2, mode=smooth, align_corners=False),
        "corners": lambda m, x: F.interpolate(
            m.act(m.norm(x)), size=tuple(5 for _ in x.shape[2:]), mode=smooth, align_corners=True
        ),
        "module": lambda m, x: m.up(m.norm(x)),
    }
    return Block(
        run[draw.pick("how", list(run))], norm=draw.norm(shape[1]), act=draw.act(), up=nn.Upsample(scale_factor=2)
    )


@block(SPATIAL)
def pad(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
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
    return Block(run[draw.pick("how", list(run))], norm=draw.norm(shape[1]), act=draw.act(), pad=module)


@block(SPATIAL)
def scales(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    """Parameters and buffers a channel, used directly."""
    ones = [1] * draw.dims
    lead = draw.pick("lead", [(1,), ()])
    scale, shift = (nn.Parameter(torch.ones(*lead, shape[1], *ones)) for _ in range(2))
    run = {
        "mul": lambda m, x: m.norm(x) * m.scale,
        "add": lambda m, x: m.act(m.norm(x) + m.shift),
        "both": lambda m, x: torch.addcmul(m.shift, m.norm(x), m.scale),
        "affine": lambda m, x: m.act(m.norm(x) * m.scale + m.shift),
        "scalar": lambda m, x: m.norm(x) * m.one,
        "buffer": lambda m, x: m.norm(x) * m.mask,
        "twice": lambda m, x: m.norm(x * m.scale) * m.scale,
        "computed": lambda m, x: m.norm(x) * torch.sigmoid(m.scale),
        "residual": lambda m, x: x + m.scale * m.norm(x),
    }
    mask = torch.tensor([1.0, 0.0, 1.0]).repeat(shape[1])[: shape[1]].view(*lead, -1, *ones)
    parts = {
        "scale": scale,
        "shift": shift,
        "one": nn.Parameter(torch.ones(1)),
        "mask": mask,
        "norm": draw.norm(shape[1]),
    }
    return Block(run[draw.pick("how", list(run))], act=draw.act(), **parts)


@block(SPATIAL)
def barrier(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
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
    return Block(run[draw.pick("how", list(run))], **parts)


@block(SPATIAL)
def odd(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
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
def alone(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
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


# From images to rows, and rows ----------------------------------------------------------------------------------------


@block(SPATIAL, hard=True)
def flat(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    _, c, *rest = shape
    d, all_sizes = draw.dims, math.prod(rest)
    adaptive = draw.call("adaptive_avg_pool")
    run = {
        "flatten": lambda m, x: m.act(m.norm(x)).flatten(1),
        "view": lambda m, x: m.norm(x).view(x.shape[0], -1),
        "reshape": lambda m, x: m.act(m.norm(x)).reshape(len(x), -1),
        "hard": lambda m, x: m.norm(x).view(x.shape[0], c * all_sizes),
        "sizes": lambda m, x: m.norm(x).reshape(x.size(0), x.size(1) * math.prod(x.shape[2:])),
        "global": lambda m, x: torch.flatten(adaptive(m.act(m.norm(x)), 1), 1),
        "mean": lambda m, x: m.act(m.norm(x)).mean(tuple(range(2, 2 + d))),
        "max": lambda m, x: m.norm(x).amax(list(range(2, 2 + d))),
        "squeeze": lambda m, x: adaptive(m.norm(x), 1).view(x.shape[0], c),
        "sum": lambda m, x: m.act(m.norm(x)).sum(dim=-1).flatten(start_dim=1) * 0.1,
        "last": lambda m, x: m.norm(x).movedim(1, -1).flatten(1),
    }
    how = draw.pick("how", list(run))
    return nn.Sequential(Block(run[how], norm=draw.norm(c), act=draw.act()), _LazyLinear(draw.width()))


class _LazyLinear(nn.LazyLinear):
    """Takes its width from the first run."""


@block(FLAT)
def linear(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    outputs = draw.width()
    layer = nn.Linear(shape[1], outputs, bias=draw.pick("bias", [True, False]))
    return nn.Sequential(layer, draw.norm(outputs), draw.act())


@block(FLAT)
def linear_residual(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    c, middle = shape[1], draw.width()
    body = [draw.norm(c), draw.act(), nn.Linear(c, middle), draw.norm(middle), draw.act(), nn.Linear(middle, c)]
    return Block(lambda m, x: x + m.body(x), body=nn.Sequential(*body))


@block(FLAT)
def linear_tricks(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    c = shape[1]
    run = {
        "gru": lambda m, x: m.gru(m.norm(x).unsqueeze(1))[0].squeeze(1),
        "layer": lambda m, x: m.act(m.layer(m.norm(x))),
        "glu": lambda m, x: (lambda a, b: a * b.sigmoid())(*m.wide(m.norm(x)).chunk(2, -1)),
        "functional": lambda m, x: F.linear(m.act(m.norm(x)), m.wide.weight, m.wide.bias),
        "matmul": lambda m, x: m.norm(x) @ m.wide.weight.t(),
        "scale": lambda m, x: m.norm(x) * m.scale,
        "softmax": lambda m, x: m.norm(x).log_softmax(-1),
        "outer": lambda m, x: (m.norm(x).unsqueeze(2) * x.unsqueeze(1)).flatten(1)[:, :20],
        "tied": lambda m, x: F.linear(m.act(m.wide(m.norm(x))), m.wide.weight.t()),
        "bilinear": lambda m, x: m.norm(x) * x.sum(-1, keepdim=True).tanh(),
    }
    parts = {
        "norm": draw.norm(c),
        "act": draw.act(),
        "wide": nn.Linear(c, 2 * draw.pick("half", [1, 2, 3])),
        "gru": nn.GRU(c, 3, batch_first=True),
        "layer": nn.LayerNorm(c),
        "scale": nn.Parameter(torch.ones(c)),
    }
    return Block(run[draw.pick("how", list(run))], **parts)


# The whole network ----------------------------------------------------------------------------------------------------


@dataclass
class Pair:
    """What a model may return."""

    first: Tensor
    rest: list[Tensor]


class Net(nn.Module):
    """Blocks one after the other; those tapped are returned as well."""

    def __init__(self, returns: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        self.taps: list[bool] = []
        self.returns = returns

    @property
    def takes_two(self) -> bool:
        return any(getattr(one, "takes_second", False) for one in self.blocks)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        seen = []
        for one, tapped in zip(self.blocks, self.taps, strict=True):
            x = one(x, y) if getattr(one, "takes_second", False) else one(x)
            if tapped:
                seen.append(x)
        if self.returns == "tuple":
            return x, *seen
        if self.returns == "dict":
            return {"out": x, "seen": seen}
        return Pair(x, seen) if self.returns == "dataclass" else x


def specification(seed: int) -> Spec:
    """The network of a seed."""
    rng = random.Random(seed)
    dims = rng.choice([2, 2, 2, 2, 2, 2, 1, 1, 3, 0])
    blocks: list[BlockSpec] = []
    images = [name for name in SPATIAL if name != "flat"]
    for _ in range(rng.randint(2, 6 if dims < 3 else 3) if dims else 0):
        blocks.append({"kind": rng.choice(images)})
    if dims and rng.random() < 0.6:
        blocks.append({"kind": "flat"})
    if not dims or blocks[-1]["kind"] == "flat":
        blocks += [{"kind": rng.choice(list(FLAT))} for _ in range(rng.randint(0, 2) if dims else rng.randint(2, 4))]
    for entry in blocks:
        entry["seed"] = rng.randrange(10**6)
        entry["tap"] = rng.random() < 0.15
        entry["cut"] = rng.choice([None, None, None, "filters", "inputs", "entries", "all"])
    return Spec(
        seed=seed,
        dims=dims,
        channels=rng.choice([1, 2, 3, 4]),
        size=rng.choice([4, 5, 6, 7]) if dims < 3 else 4,
        blocks=tuple(blocks),
        returns=rng.choice(["tensor", "tensor", "tuple", "dict", "dataclass"]),
        training=rng.random() < 0.3,
        round_to=rng.choice([1, 1, 1, 1, 1, 2, 4]),
        fold=rng.random() < 0.15,
    )


def build(spec: Spec) -> Net:
    """The network of a specification, in float64 and eval mode."""
    net, shape = Net(spec.returns), _shape(spec)
    for entry in spec.blocks:
        made = _fitting(entry, spec, shape)
        if made is not None:
            shape = made[1]
            net.blocks.append(made[0])
            net.taps.append(entry["tap"])
    _sparsify(net)
    return net.train(spec.training)


def options(spec: Spec) -> Spec:
    """The same specification with everything that its blocks draw written out; blocks that do not fit left out."""
    blocks, shape = [], _shape(spec)
    for entry in spec.blocks:
        made = _fitting(entry, spec, shape)
        if made is not None:
            shape = made[1]
            blocks.append({**entry, **made[2]})
    return Spec(**{**vars(spec), "blocks": tuple(blocks)})


def inputs(spec: Spec, net: Net, *, batch: int = 2, grow: int = 0, seed: int = 0) -> tuple[Tensor, ...]:
    """Random inputs; `grow` adds to every spatial size."""
    generator = torch.Generator().manual_seed(1000 * spec.seed + seed)
    shape = (batch, *_shape(spec)[1:2], *(n + grow for n in _shape(spec)[2:]))
    count = 2 if net.takes_two else 1
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(count))


def _shape(spec: Spec) -> tuple[int, ...]:
    return (2, spec.channels, *(spec.size + (i == 1) for i in range(spec.dims)))


def _fitting(entry: BlockSpec, spec: Spec, shape: tuple[int, ...]) -> tuple[nn.Module, tuple[int, ...], Any] | None:
    """The block of `entry`, the shape behind it and what it drew; None if it does not fit."""
    kinds = SPATIAL if len(shape) > 2 else FLAT
    if entry["kind"] not in kinds or math.prod(shape[1:]) > 3000:
        return None
    draw = Draw({**entry, "channels": spec.channels}, len(shape) - 2)
    generator = torch.Generator().manual_seed(entry["seed"])
    state = torch.random.get_rng_state()
    try:
        made = kinds[entry["kind"]](draw, shape).double().eval()
        given = torch.randn(shape, generator=generator, dtype=torch.float64)
        two = (torch.randn(_shape(spec), dtype=torch.float64),) if getattr(made, "takes_second", False) else ()
        with torch.no_grad():
            after = tuple(made(given, *two).shape)
    except (MisfitError, RuntimeError, ValueError):
        return None
    finally:
        torch.random.set_rng_state(state)
    if math.prod(after) == 0:
        return None
    _randomise(made, entry["cut"], generator)
    return made, after, draw.made


@torch.no_grad()
def _randomise(made: nn.Module, cut: str | None, generator: torch.Generator) -> None:
    def some(shape: Any, rate: float) -> Tensor:
        return torch.rand(shape, generator=generator) < rate

    for parameter in made.parameters():
        spread = 1.0 / math.sqrt(max(parameter[0].numel(), 1)) if parameter.dim() > 1 else 0.5
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * spread)
    for module in made.modules():
        if isinstance(module, nn.modules.conv._ConvNd | nn.Linear) and cut is not None:
            weight = module.weight
            rates = {"filters": (0.5, 0, 0), "inputs": (0, 0.5, 0), "entries": (0, 0, 0.5), "all": (0.3, 0.3, 0.3)}[cut]
            weight[some(weight.shape[0], rates[0])] = 0
            weight[:, some(weight.shape[1], rates[1])] = 0
            weight[some(weight.shape, rates[2])] = 0
            if module.bias is not None and cut == "filters":
                module.bias[some(module.bias.shape, 0.5)] = 0
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            _randomise_norm(module, some, generator)


def _randomise_norm(norm: Any, some: Callable[..., Tensor], generator: torch.Generator) -> None:
    if norm.running_mean is not None:
        norm.running_mean.copy_(torch.randn(norm.num_features, generator=generator) * 0.5)
        norm.running_var.copy_(torch.rand(norm.num_features, generator=generator) + 0.5)
    if norm.weight is not None:
        dropped = some(norm.num_features, norm.rate)
        norm.weight.add_(norm.weight.sign() * 0.3)[dropped] = 0
        norm.bias[dropped & (torch.tensor(norm.sparse) | ~some(dropped.shape, 0.5 * norm.shifts))] = 0


def _sparsify(net: Net) -> None:
    chosen = [module for module in net.modules() if getattr(module, "sparse", False) is True]
    if not chosen:
        return
    sparsify(net, only=lambda _, module: any(module is one for one in chosen))
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, SparseBatchNorm) and module.bias is not None:
                # b of a dropped channel has no effect, whatever it is
                module.bias.copy_(torch.where(module.gate() == 0, torch.tensor(0.7, dtype=torch.float64), module.bias))


def simpler(spec: Spec) -> Iterator[Spec]:
    """Specifications a little smaller than this one, with everything that blocks draw written out."""
    full = options(spec)
    fields = vars(full)
    for index in range(len(full.blocks)):
        yield Spec(**{**fields, "blocks": full.blocks[:index] + full.blocks[index + 1 :]})
    for key, plain in {"returns": "tensor", "training": False, "round_to": 1, "fold": False}.items():
        if fields[key] != plain:
            yield Spec(**{**fields, key: plain})
    for index, entry in enumerate(full.blocks):
        for key, value in entry.items():
            plain = _PLAIN.get(key.rstrip("0123456789"), value)
            if value != plain:
                changed = {**entry, key: plain}
                yield Spec(**{**fields, "blocks": (*full.blocks[:index], changed, *full.blocks[index + 1 :])})


_PLAIN: dict[str, Any] = {
    **dict.fromkeys(["tap", "bias", "augmented", "shifts"], False),
    **dict.fromkeys(["groups", "stride", "kernel", "dilation", "length"], 1),
    **dict.fromkeys(["norm", "act"], "none"),
    **dict.fromkeys(["cut", "project"]),
    "padding": 0,
    "mode": "zeros",
}
