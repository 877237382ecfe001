"""Networks with batch norms before the convolutions: ResNets for small and large images, and DenseNets."""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_whole

RESNET50 = (3, 4, 6, 3)


class BasicBlock(nn.Module):
    """BN-ReLU-conv3x3 twice, plus the shortcut; nothing after the addition."""

    expansion = 1

    def __init__(self, in_channels: int, planes: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.shortcut = shortcut(in_channels, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        total: Tensor = out + self.shortcut(x)
        return total


class Bottleneck(nn.Module):
    """BN-ReLU-conv with kernels 1, 3 and 1, the stride on the 3x3, plus the shortcut of the raw input."""

    expansion = 4

    def __init__(self, in_channels: int, planes: int, stride: int) -> None:
        super().__init__()
        width = planes * self.expansion
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, planes, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, width, 1, bias=False)
        self.shortcut = shortcut(in_channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        out = self.conv3(F.relu(self.bn3(out)))
        total: Tensor = out + self.shortcut(x)
        return total


def shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """The identity, or a 1x1 convolution if width or resolution changes."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)


def residual_stages(
    block: Callable[[int, int, int], nn.Module], expansion: int, width: int, blocks: Sequence[int]
) -> tuple[nn.Sequential, int]:
    """One stage per entry of `blocks`, for an input of `width` channels; and the channels of the output.

    `block(in_channels, planes, stride)` makes a residual block with `planes * expansion` output channels. The first
    stage keeps the resolution and has `width` planes; each further stage halves the resolution and doubles the planes.
    """
    channels = width
    stages: list[nn.Module] = []
    for stage, count in enumerate(blocks):
        planes = width * 2**stage
        layers: list[nn.Module] = []
        for index in range(count):
            layers.append(block(channels, planes, 2 if stage > 0 and index == 0 else 1))
            channels = planes * expansion
        stages.append(nn.Sequential(*layers))
    return nn.Sequential(*stages), channels


class PreActivationNet(nn.Module):
    """Stem, stages with `channels` outputs, batch norm, ReLU, global average pooling and a classifier.

    The stem needs no batch norm, as each stage begins with one.
    """

    def __init__(self, stem: nn.Module, stages: nn.Module, channels: int, num_classes: int) -> None:
        super().__init__()
        self.stem, self.stages = stem, stages
        self.bn = nn.BatchNorm2d(channels)
        self.classifier = nn.Linear(channels, require_whole("num_classes", num_classes, low=1))
        self.apply(initialise)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.stages(self.stem(x))))
        logits: Tensor = self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
        return logits


def initialise(module: nn.Module) -> None:
    """Draw the weights of a convolution from N(0, 2 / (kernel area * output channels)); skip other modules."""
    if isinstance(module, nn.Conv2d):
        fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
        nn.init.normal_(module.weight, 0.0, math.sqrt(2 / fan_out))


class PreResNet(PreActivationNet):
    """Stem, three stages of halving resolution, batch norm, global pooling and a classifier.

    Args:
        depth: 6n + 2 with basic blocks, 9n + 2 with bottlenecks.
        width: channels of the first stage; each of the next two doubles them.
        bottleneck: whether to use bottlenecks; by default from depth 164 on, as in the literature, and for depths that
            only they give (29, 47, 65, ...).

    Shape: (N, in_channels, H, W) to (N, num_classes).

    Example:
        >>> PreResNet(20)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        depth: int,
        num_classes: int = 10,
        *,
        width: int = 16,
        in_channels: int = 3,
        bottleneck: bool | None = None,
    ) -> None:
        require_whole("depth", depth)
        require_whole("width", width, low=1)
        require_whole("in_channels", in_channels, low=1)
        if bottleneck is None:
            bottleneck = depth >= 164 or ((depth - 2) % 6 != 0 and (depth - 2) % 9 == 0)
        block = Bottleneck if bottleneck else BasicBlock
        per_block = 9 if block is Bottleneck else 6
        if depth < 2 + per_block or (depth - 2) % per_block:
            raise SparsityError(f"a ResNet of {block.__name__}s has depth {per_block}n + 2, n at least 1; got {depth}")
        stem = nn.Conv2d(in_channels, width, 3, 1, 1, bias=False)
        stages, channels = residual_stages(block, block.expansion, width, [(depth - 2) // per_block] * 3)
        super().__init__(stem, stages, channels, num_classes)


class PreActivationResNet(PreActivationNet):
    """`ResNet` with the bottlenecks of `PreResNet`: no batch norm in stem and shortcuts, one before pooling.

    Arguments and shapes are those of `ResNet`.
    """

    def __init__(
        self, num_classes: int = 1000, *, blocks: Sequence[int] = RESNET50, width: int = 64, in_channels: int = 3
    ) -> None:
        stem = nn.Sequential(stem_convolution(in_channels, width, blocks), nn.MaxPool2d(3, 2, 1))
        stages, channels = residual_stages(Bottleneck, Bottleneck.expansion, width, blocks)
        super().__init__(stem, stages, channels, num_classes)


def stem_convolution(in_channels: int, width: int, blocks: Sequence[int]) -> nn.Conv2d:
    """The first convolution of a network for large images; raises if a size is impossible."""
    require_whole("in_channels", in_channels, low=1)
    require_whole("width", width, low=1)
    if not blocks:
        raise SparsityError(f"blocks must hold the number of blocks of at least one stage, got {blocks!r}")
    for count in blocks:
        require_whole("the number of blocks of a stage", count, low=1)
    return nn.Conv2d(in_channels, width, 7, 2, 3, bias=False)


class DenseLayer(nn.Module):
    """BN-ReLU-conv3x3; the new channels are appended to those of the input."""

    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(in_channels)
        self.conv = nn.Conv2d(in_channels, growth, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.bn(x)))], 1)


class Transition(nn.Module):
    """BN-ReLU-conv1x1 of unchanged width, then average pooling to half the resolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.bn(x))), 2)


class DenseNet(PreActivationNet):
    """Stem, three dense blocks with transitions between them, batch norm, global pooling and a classifier.

    `stages` holds block, transition, block, transition, block. The stem has twice `growth` output channels, so
    the input of every batch norm consists of whole groups of `growth` channels.

    Args:
        depth: 3n + 4, with n layers in each block.
        growth: channels that each layer adds.

    Shape: (N, in_channels, H, W) to (N, num_classes).

    Example:
        >>> DenseNet(40)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(self, depth: int, num_classes: int = 10, *, growth: int = 12, in_channels: int = 3) -> None:
        require_whole("depth", depth)
        require_whole("growth", growth, low=1)
        require_whole("in_channels", in_channels, low=1)
        if depth < 7 or (depth - 4) % 3:
            raise SparsityError(f"a DenseNet has depth 3n + 4, n at least 1; got {depth}")
        layers = (depth - 4) // 3
        channels = 2 * growth
        stem = nn.Conv2d(in_channels, channels, 3, 1, 1, bias=False)
        stages: list[nn.Module] = []
        for block in range(3):
            if block > 0:
                stages.append(Transition(channels))
            stages.append(nn.Sequential(*[DenseLayer(channels + growth * n, growth) for n in range(layers)]))
            channels += growth * layers
        super().__init__(stem, nn.Sequential(*stages), channels, num_classes)
