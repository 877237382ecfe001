"""Networks with other norms than batch norm, and with computed weights."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.compaction.architectures.architecture import written
from tests.compaction.architectures.layers import Pooled, unit


class GroupAndLayer(nn.Module):
    """Batch norms, a group norm and a layer norm in one network."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = unit(3, 32, stride=2), nn.Conv2d(32, 32, 3, padding=1)
        self.group, self.mid = nn.GroupNorm(4, 32), unit(32, 48)
        self.layer, self.fc1, self.fc2 = nn.LayerNorm(48), nn.Linear(48, 96), nn.Linear(96, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mid(F.relu(self.group(self.conv(self.stem(x)))))
        x = self.layer(x.permute(0, 2, 3, 1))
        y: Tensor = self.fc2(F.relu(self.fc1(x))).mean((1, 2))
        return y


written("GroupNorm and LayerNorm", quick=True)(GroupAndLayer)


@written("InstanceNorm")
def _instance() -> nn.Module:
    instance = [unit(3, 24), nn.Conv2d(24, 24, 3, padding=1), nn.InstanceNorm2d(24, affine=True), nn.ReLU()]
    return nn.Sequential(*instance, unit(24, 24), nn.InstanceNorm2d(24), nn.Conv2d(24, 3, 3, padding=1))


class Frozen(nn.Module):
    """Batch norm with buffers only, its formula written out, as detectors have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((width,), value))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.reshape(1, -1, 1, 1), self.bias.reshape(1, -1, 1, 1)
        scale = weight * (self.running_var.reshape(1, -1, 1, 1) + 1e-5).rsqrt()
        return x * scale + (bias - self.running_mean.reshape(1, -1, 1, 1) * scale)


class FrozenBlock(nn.Module):
    """A bottleneck with frozen batch norms."""

    def __init__(self, inputs: int, middle: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, middle, 1, bias=False), Frozen(middle)
        self.conv2, self.bn2 = nn.Conv2d(middle, middle, 3, stride, 1, bias=False), Frozen(middle)
        self.conv3, self.bn3 = nn.Conv2d(middle, outputs, 1, bias=False), Frozen(outputs)
        self.short = nn.Sequential()
        if inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), Frozen(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(self.bn3(self.conv3(y)) + self.short(x))


@written("Frozen batch norm (DETR)", quick=True)
def _frozen() -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), Frozen(16), nn.ReLU())
    return Pooled(nn.Sequential(stem, FrozenBlock(16, 16, 48), FrozenBlock(48, 16, 48), FrozenBlock(48, 24, 64, 2)), 64)


def _parametrised(wrap: object) -> nn.Module:
    layers: list[nn.Module] = [unit(3, 32)]
    for stride in (1, 2):
        conv = nn.Conv2d(32, 32, 3, stride, 1)
        layers += [wrap(conv), nn.BatchNorm2d(32), nn.ReLU()]  # type: ignore[operator]
    return Pooled(nn.Sequential(*layers), 32)


written("Weight norm", quick=True)(lambda: _parametrised(parametrizations.weight_norm))
written("Spectral norm", quick=True)(lambda: _parametrised(parametrizations.spectral_norm))


class Standardised(nn.Conv2d):
    """A convolution whose filters have mean zero and variance one."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        weight = weight / (weight.std(dim=(1, 2, 3), keepdim=True) + 1e-5)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


@written("Weight standardisation", quick=True)
def _standardised() -> nn.Module:
    layers: list[nn.Module] = [unit(3, 32)]
    for stride in (1, 2, 1):
        layers += [Standardised(32, 32, 3, stride, 1), nn.BatchNorm2d(32), nn.ReLU()]
    return Pooled(nn.Sequential(*layers), 32)


class Quantised(nn.Conv2d):
    """A convolution whose weights are rounded to a grid with a step per filter."""

    def forward(self, x: Tensor) -> Tensor:
        step = self.weight.abs().amax((1, 2, 3), keepdim=True) / 7
        weight = torch.round(self.weight / step).clamp(-7, 7) * step
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


@written("Rounded weights")
def _rounded() -> nn.Module:
    return Pooled(
        nn.Sequential(unit(3, 32), Quantised(32, 32, 3, 1, 1), nn.BatchNorm2d(32), nn.ReLU(), unit(32, 32)), 32
    )
