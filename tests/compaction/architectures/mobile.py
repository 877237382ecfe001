"""Networks of depthwise and grouped convolutions."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.compaction.architectures.architecture import written
from tests.compaction.architectures.layers import Pooled, unit


class Inverted(nn.Module):
    """The block of MobileNetV2."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide, self.adds = 4 * inputs, stride == 1 and inputs == outputs
        self.body = nn.Sequential(
            unit(inputs, wide, 1, nn.ReLU6),
            unit(wide, wide, 3, nn.ReLU6, stride=stride, groups=wide),
            unit(wide, outputs, 1, None),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


class MobileSegmentation(nn.Module):
    """MobileNetV2 with a head that mixes a pooled branch and an early one, as in LR-ASPP."""

    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Sequential(unit(3, 16, 3, nn.ReLU6, stride=2), Inverted(16, 16, 1), Inverted(16, 24, 2))
        self.late = nn.Sequential(Inverted(24, 24, 1), Inverted(24, 32, 2), Inverted(32, 32, 1))
        self.branch = unit(32, 24, 1)
        self.scale = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(32, 24, 1, bias=False), nn.Sigmoid())
        self.low, self.high = nn.Conv2d(24, 4, 1), nn.Conv2d(24, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        early = self.early(x)
        late = self.late(early)
        mixed = F.interpolate(self.branch(late) * self.scale(late), size=early.shape[-2:], mode="bilinear")
        return F.interpolate(self.low(early) + self.high(mixed), size=x.shape[-2:], mode="bilinear")


written("MobileNetV2 segmentation", size=(32, 32), quick=True)(MobileSegmentation)


class Shuffled(nn.Module):
    """The unit of ShuffleNetV2."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half, self.stride = outputs // 2, stride
        taken = inputs if stride == 2 else inputs // 2
        self.left = nn.Sequential()
        if stride == 2:
            self.left = nn.Sequential(unit(taken, taken, 3, None, stride=2, groups=taken), unit(taken, half, 1))
        self.right = nn.Sequential(
            unit(taken, half, 1), unit(half, half, 3, None, stride=stride, groups=half), unit(half, half, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 2:
            out = torch.cat([self.left(x), self.right(x)], 1)
        else:
            kept, used = x.chunk(2, dim=1)
            out = torch.cat([kept, self.right(used)], 1)
        n, c, h, w = out.shape
        return out.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


@written("ShuffleNetV2", size=(32, 32), quick=True)
def _shuffle() -> nn.Module:
    stages = [Shuffled(16, 32, 2), Shuffled(32, 32, 1), Shuffled(32, 32, 1), Shuffled(32, 64, 2), Shuffled(64, 64, 1)]
    return Pooled(nn.Sequential(unit(3, 16, 3, stride=2), nn.MaxPool2d(3, 2, 1), *stages, unit(64, 96, 1)), 96)


class Squeezed(nn.Module):
    """A residual block with squeeze and excitation by linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(unit(width, width), unit(width, width, 3, None))
        self.fc = nn.Sequential(nn.Linear(width, width // 4), nn.ReLU(), nn.Linear(width // 4, width), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        b, c, _, _ = y.shape
        s = self.fc(y.mean((2, 3))).view(b, c, 1, 1)
        return F.relu(x + y * s.expand_as(y))


@written("SE-ResNet")
def _squeeze() -> nn.Module:
    return Pooled(nn.Sequential(unit(3, 32), Squeezed(32), Squeezed(32), unit(32, 64, stride=2), Squeezed(64)), 64)


@written("Depthwise with circular, reflect and replicate padding", quick=True)
def _padded() -> nn.Module:
    layers: list[nn.Module] = [unit(3, 24)]
    for mode in ("circular", "reflect", "replicate"):
        layers += [unit(24, 24, 3, groups=24, padding_mode=mode), unit(24, 24, 1)]
    return Pooled(nn.Sequential(*layers), 24)


class Ghost(nn.Module):
    """Half of the channels by a convolution, the others by a depthwise one from them, cut to the width."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.primary, self.cheap = (
            unit(inputs, -(-outputs // 2), 1),
            unit(-(-outputs // 2), -(-outputs // 2), groups=-(-outputs // 2)),
        )

    def forward(self, x: Tensor) -> Tensor:
        first = self.primary(x)
        return torch.cat([first, self.cheap(first)], dim=1)[:, : self.outputs]


@written("GhostNet")
def _ghost() -> nn.Module:
    return Pooled(nn.Sequential(unit(3, 16, stride=2), Ghost(16, 31), unit(31, 31, groups=31), Ghost(31, 48)), 48)
