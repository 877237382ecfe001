"""Densely connected networks for small images, without bottlenecks and without compression."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_whole
from diffsparse.models.preresnet import PreActivationNet


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
        num_classes: size of the output.
        growth: channels that each layer adds.
        in_channels: channels of the image.

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
