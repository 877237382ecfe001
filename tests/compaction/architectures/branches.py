"""Networks whose branches are concatenated."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.compaction.architectures.architecture import written
from tests.compaction.architectures.layers import Pooled, unit


class UNet(nn.Module):
    """Two levels down, two up with transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self.pair(3, 16), self.pair(16, 32), self.pair(32, 64)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)])
        self.join = nn.ModuleList([self.pair(64, 32), self.pair(32, 16)])
        self.head = nn.Conv2d(16, 3, 1)

    @staticmethod
    def pair(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(unit(inputs, outputs), unit(outputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        seen = []
        for index, level in enumerate(self.down):
            x = level(F.max_pool2d(x, 2) if index else x)
            seen.append(x)
        for up, join, skip in zip(self.up, self.join, reversed(seen[:-1]), strict=True):
            x = up(x)
            x = F.pad(x, [0, skip.shape[3] - x.shape[3], 0, skip.shape[2] - x.shape[2]])
            x = join(torch.cat([skip, x], dim=1))
        return self.head(x)


written("U-Net")(UNet)


class DenseLayer(nn.Module):
    """Norm, activation and convolution, appended to what came."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))
        return torch.cat([x, y], 1)


@written("DenseNet", quick=True)
def _dense() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    width = 16
    for _ in range(2):
        for _ in range(3):
            layers.append(DenseLayer(width, 8))
            width += 8
        layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
        width //= 2
    return Pooled(nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU()), width)


class Mixed(nn.Module):
    """Four branches side by side, one of them pooled."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.one = unit(inputs, 16, 1)
        self.three = nn.Sequential(unit(inputs, 12, 1), unit(12, 16))
        self.five = nn.Sequential(
            unit(inputs, 8, 1),
            nn.Conv2d(8, 8, (1, 5), padding=(0, 2)),
            nn.Conv2d(8, 12, (5, 1), padding=(2, 0)),
            nn.BatchNorm2d(12),
        )
        self.pooled = unit(inputs, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pooled(F.avg_pool2d(x, 3, 1, 1))
        return torch.cat([self.one(x), self.three(x), self.five(x), pooled], dim=1)


@written("Inception")
def _inception() -> nn.Module:
    return Pooled(nn.Sequential(unit(3, 24), Mixed(24), nn.MaxPool2d(3, 2, 1), Mixed(52)), 52)


class Atrous(nn.Module):
    """Dilated branches and one pooled over the whole image, as in DeepLabV3."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(unit(3, 24, stride=2), unit(24, 32, dilation=2), unit(32, 32, stride=2))
        self.branches = nn.ModuleList([unit(32, 16, 1), *(unit(32, 16, dilation=d) for d in (2, 3, 4))])
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), unit(32, 16, 1))
        self.project = nn.Sequential(unit(80, 32, 1), nn.Dropout(0.5), unit(32, 32), nn.Conv2d(32, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        features = self.stem(x)
        parts = [branch(features) for branch in self.branches]
        parts.append(F.interpolate(self.pooled(features), size=features.shape[-2:], mode="bilinear"))
        return F.interpolate(self.project(torch.cat(parts, dim=1)), size=x.shape[-2:], mode="bilinear")


written("DeepLab (ASPP)", size=(32, 32))(Atrous)


class Pyramid(nn.Module):
    """A feature pyramid: levels are resized, added, and each has the same head."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList([unit(3, 16, stride=2), unit(16, 32, stride=2), unit(32, 48, stride=2)])
        self.lateral = nn.ModuleList([unit(w, 24, 1, None) for w in (16, 32, 48)])
        self.head = nn.Sequential(unit(24, 24), nn.Conv2d(24, 6, 3, padding=1))

    def forward(self, x: Tensor) -> list[Tensor]:
        seen = []
        for level in self.levels:
            x = level(x)
            seen.append(x)
        top = self.lateral[2](seen[2])
        out = [top]
        for index in (1, 0):
            top = self.lateral[index](seen[index]) + F.interpolate(top, size=seen[index].shape[-2:])
            out.append(top)
        return [self.head(level) for level in out]


written("Feature pyramid with a shared head", size=(32, 32))(Pyramid)
