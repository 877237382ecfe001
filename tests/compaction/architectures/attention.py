"""Networks with attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.compaction.architectures.architecture import written
from tests.compaction.architectures.layers import unit


class NormalisedAttention(nn.Module):
    """Attention between pixels, with a batch norm behind each of its layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (unit(width, width, 1, None) for _ in range(3))
        self.project = unit(width, width, 1, None)

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        q, k, v = (layer(x).reshape(b, self.heads, -1, h * w) for layer in (self.query, self.key, self.value))
        weights = (q.transpose(-2, -1) @ k * q.shape[2] ** -0.5).softmax(-1)
        return x + self.project((v @ weights.transpose(-2, -1)).reshape(b, -1, h, w))


class SelfAttention(nn.Module):
    """Attention of one head by `bmm`, as in SAGAN and non-local networks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem, self.heads = unit(3, width, stride=2), nn.ModuleList([NonLocal(width), NonLocal(width)])
        self.last = nn.Sequential(unit(width, width), nn.Conv2d(width, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for head in self.heads:
            x = head(x)
        y: Tensor = self.last(x)
        return y


class NonLocal(nn.Module):
    """Scores between pixels from two thin layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.theta, self.phi, self.g = (unit(width, width // 2, 1, None) for _ in range(3))
        self.out = unit(width // 2, width, 1, None)

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        theta, phi, g = (layer(x).flatten(2) for layer in (self.theta, self.phi, self.g))
        scores = torch.softmax(torch.bmm(theta.permute(0, 2, 1), phi), dim=-1)
        mixed = torch.bmm(scores, g.permute(0, 2, 1)).permute(0, 2, 1)
        return x + self.out(mixed.reshape(b, -1, h, w))


written("Attention written by hand, one head", quick=True)(lambda: SelfAttention(32))


@written("Attention written by hand, four heads")
def _heads() -> nn.Module:
    return nn.Sequential(
        unit(3, 32, stride=2), NormalisedAttention(32, 4), unit(32, 32), NormalisedAttention(32, 4), nn.Conv2d(32, 4, 1)
    )


class Multihead(nn.Module):
    """Convolutions, then `nn.MultiheadAttention` over the pixels and a feed-forward block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(unit(3, 24, stride=2), unit(24, 32, stride=2))
        self.attend = nn.MultiheadAttention(32, 4, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(32, 64), nn.Linear(64, 32)
        self.norm, self.head = nn.BatchNorm1d(32), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = x + self.attend(x, x, x, need_weights=False)[0]
        x = x + self.fc2(F.gelu(self.fc1(x)))
        y: Tensor = self.head(self.norm(x.transpose(1, 2)).mean(2))
        return y


written("MultiheadAttention", quick=True)(Multihead)


class LinearNorm(nn.Module):
    """A linear layer and a batch norm over all rows, as LeViT has them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return self.norm(x.flatten(0, 1)).reshape_as(x)


class LevitBlock(nn.Module):
    """Attention with keys narrower than values, and a feed-forward block."""

    def __init__(self, width: int, heads: int, key: int) -> None:
        super().__init__()
        self.heads, self.key = heads, key
        self.qkv, self.project = LinearNorm(width, heads * key * 4), LinearNorm(heads * key * 2, width)
        self.up, self.down = LinearNorm(width, 2 * width), LinearNorm(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, self.heads, -1).split([self.key, self.key, 2 * self.key], dim=3)
        q, k, v = (t.permute(0, 2, 1, 3) for t in (q, k, v))
        weights = (q @ k.transpose(-2, -1) * self.key**-0.5).softmax(-1)
        x = x + self.project(F.hardswish((weights @ v).transpose(1, 2).reshape(b, n, -1)))
        return x + self.down(F.hardswish(self.up(x)))


class Levit(nn.Module):
    """Convolutions, then attention over pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(unit(3, 16, 3, nn.Hardswish, stride=2), unit(16, 32, 3, None, stride=2))
        self.blocks, self.head = nn.Sequential(LevitBlock(32, 2, 8), LevitBlock(32, 2, 8)), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.blocks(self.stem(x).flatten(2).transpose(1, 2)).mean(1))
        return y


written("LeViT (reshape_as)", size=(32, 32), quick=True)(Levit)


class Scaled(nn.Module):
    """The block of ConvNeXt, with its layer scale."""

    def __init__(self, width: int, norm: bool) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.pwconv1, self.pwconv2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))
        return x + y.permute(0, 3, 1, 2)


@written("ConvNeXt with layer scale", quick=True)
def _convnext() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 24, 2, 2), Scaled(24, True), Scaled(24, True), unit(24, 32, stride=2), Scaled(32, True)
    )


@written("Layer scale without norms")
def _layer_scale() -> nn.Module:
    return nn.Sequential(unit(3, 24, stride=2), Scaled(24, False), Scaled(24, False), unit(24, 24))
