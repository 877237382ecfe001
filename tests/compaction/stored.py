"""Small nets that compute with their parameters and buffers before they use them."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import diffsparse as ds
from tests.compaction.gated import VALUES
from tests.compaction.nets import randomise


class FrozenNorm(nn.Module):
    """A batch norm in eval mode, written out with buffers."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(channels))
        self.register_buffer("bias", torch.randn(channels))
        self.register_buffer("running_mean", torch.randn(channels))
        self.register_buffer("running_var", 0.5 + torch.rand(channels))
        self.weight[::2] = 0
        self.bias[::2] = -1

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale.reshape(1, -1, 1, 1) + shift.reshape(1, -1, 1, 1)


class StandardConv(nn.Conv2d):
    """A convolution that standardises each row of its weight."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        weight = weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class ScaledLinear(nn.Module):
    """A linear layer whose weight has a mask and a scale; not a subclass of `nn.Linear`."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.raw, self.shift = nn.Parameter(torch.randn(outputs, inputs)), nn.Parameter(torch.randn(outputs))
        self.register_buffer("mask", torch.rand(outputs, inputs).round())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.raw * self.mask * 0.5, self.shift)


class LayerScale(nn.Module):
    """A stored factor per channel; every second is zero."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.randn(channels))
        self.gamma.data[::2] = 0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma[:, None, None]


class Residual(nn.Module):
    """A stream with blocks whose ends are scaled."""

    def __init__(self, end: Callable[[int], nn.Module], blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, 8, 1), end(8)) for _ in range(blocks)
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


class Excited(nn.Module):
    """Channels are scaled by a small network of a stored vector."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)
        self.code = nn.Parameter(torch.randn(1, 6))
        self.squeeze, self.excite = nn.Linear(6, 4), nn.Linear(4, 8)
        self.excite.weight.data[::2] = 0
        self.excite.bias.data[::2] = -1

    def forward(self, x: Tensor) -> Tensor:
        scale = F.relu(self.excite(F.relu(self.squeeze(self.code))))
        return self.last(F.relu(self.first(x)) * scale[:, :, None, None])


class Gated(nn.Module):
    """A bare gate, and what is done with its values."""

    def __init__(self, use: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 2, 3)
        self.gate, self.use = ds.SignedGate.from_values(VALUES), use

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.use(F.relu(self.first(x)), self.gate()))


def plain(make: Callable[..., nn.Module], weighted: Callable[[nn.Module], nn.Module] = lambda m: m) -> nn.Module:
    """A chain of three layers with batch norms, half of whose scales are zero."""
    net = nn.Sequential(
        *(weighted(make(3, 8, 3, padding=1)), nn.BatchNorm2d(8), nn.ReLU()),
        *(weighted(make(8, 16, 3, padding=1, groups=1)), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), weighted(nn.Linear(16, 4))),
    )
    randomise(net)
    for norm in (net[1], net[4]):
        norm.weight.data[::2] = 0
        norm.bias.data[::2] = -1
    return net


def frozen() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, bias=False), FrozenNorm(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 12, 1, bias=False), FrozenNorm(12), nn.ReLU()),
        nn.Conv2d(12, 4, 1),
    )


def detr() -> nn.Module:
    """A residual net in the manner of a backbone with frozen norms."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.an = nn.Conv2d(8, 6, 1, bias=False), FrozenNorm(6)
            self.b, self.bn = nn.Conv2d(6, 6, 3, padding=1, bias=False), FrozenNorm(6)
            self.c, self.cn, self.relu = nn.Conv2d(6, 8, 1, bias=False), FrozenNorm(8), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            y = self.relu(self.bn(self.b(self.relu(self.an(self.a(x))))))
            return self.relu(x + self.cn(self.c(y)))

    return nn.Sequential(nn.Conv2d(3, 8, 3), FrozenNorm(8), nn.ReLU(), Block(), Block(), nn.Conv2d(8, 4, 1))


def old_weight_norm(layer: nn.Module) -> nn.Module:
    """The weight norm that was there before parametrisations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


def scaled() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), LayerScale(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), ScaledLinear(8, 4)
    )


GATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "indexed": lambda x, gate: x * gate[:, None, None],
    "view": lambda x, gate: x * gate.view(1, -1, 1, 1),
    "unsqueezed": lambda x, gate: x * gate.unsqueeze(-1).unsqueeze(-1),
    "cast": lambda x, gate: x * gate.to(x.dtype)[:, None, None],
    "squared": lambda x, gate: x * (2.0 * gate.square()).sqrt()[None, :, None, None],
    "expanded": lambda x, gate: x * gate[:, None, None].expand(-1, x.shape[2], 1),
    "soft": lambda x, gate: x * F.softshrink(gate, 0.2)[:, None, None],
    "twice": lambda x, gate: x * gate[:, None, None] + x.square() * gate.abs()[:, None, None],
}


def nets() -> dict[str, Callable[[], Any]]:
    """Makers of all nets by name; images of 8 pixels or more with three channels go in."""
    return {
        "frozen batch norm": frozen,
        "frozen batch norm, residual": detr,
        "weight norm": lambda: plain(nn.Conv2d, parametrizations.weight_norm),
        "spectral norm": lambda: plain(nn.Conv2d, parametrizations.spectral_norm),
        "weight norm by hooks": lambda: plain(nn.Conv2d, old_weight_norm),
        "spectral norm by hooks": lambda: plain(nn.Conv2d, nn.utils.spectral_norm),
        "weight standardisation": lambda: plain(StandardConv),
        "layer scale": lambda: Residual(LayerScale),
        "scaled linear": scaled,
        "excited": Excited,
        **{f"gate {name}": lambda use=use: Gated(use) for name, use in GATES.items()},
    }
