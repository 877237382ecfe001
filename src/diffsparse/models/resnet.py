"""Bottleneck residual networks for large images, with batch norms after or before the convolutions."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_whole
from diffsparse.models.preresnet import Bottleneck, PreActivationNet, initialise, residual_stages, shortcut

RESNET50 = (3, 4, 6, 3)


class PostActivationBottleneck(nn.Module):
    """Conv-BN with kernels 1, 3 and 1, the stride on the 3x3; ReLU between them and after adding the shortcut."""

    expansion = 4

    def __init__(self, in_channels: int, planes: int, stride: int) -> None:
        super().__init__()
        width = planes * self.expansion
        self.conv1 = nn.Conv2d(in_channels, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.shortcut = shortcut(in_channels, width, stride)
        if not isinstance(self.shortcut, nn.Identity):
            self.shortcut = nn.Sequential(self.shortcut, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    """Stem with a quarter of the resolution, stages of post-activation bottlenecks, global pooling and a classifier.

    Args:
        num_classes: size of the output.
        blocks: blocks of each stage; by default those of ResNet-50.
        width: channels of the stem and planes of the first stage; each further stage doubles the planes.
        in_channels: channels of the image.

    Shape: (N, in_channels, H, W) to (N, num_classes).

    Example:
        >>> ResNet(width=8)(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 1000])
    """

    def __init__(
        self, num_classes: int = 1000, *, blocks: Sequence[int] = RESNET50, width: int = 64, in_channels: int = 3
    ) -> None:
        super().__init__()
        require_whole("num_classes", num_classes, low=1)
        self.stem = nn.Sequential(_first(in_channels, width, blocks), nn.BatchNorm2d(width), nn.ReLU(), _pool())
        self.stages, channels = residual_stages(
            PostActivationBottleneck, PostActivationBottleneck.expansion, width, blocks
        )
        self.classifier = nn.Linear(channels, num_classes)
        self.apply(initialise)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.stages(self.stem(x)), 1)
        logits: Tensor = self.classifier(torch.flatten(x, 1))
        return logits


class PreActivationResNet(PreActivationNet):
    """`ResNet` with the bottlenecks of `PreResNet`: no batch norm in stem and shortcuts, one before pooling.

    Arguments and shapes are those of `ResNet`.

    Example:
        >>> PreActivationResNet(width=8)(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 1000])
    """

    def __init__(
        self, num_classes: int = 1000, *, blocks: Sequence[int] = RESNET50, width: int = 64, in_channels: int = 3
    ) -> None:
        stem = nn.Sequential(_first(in_channels, width, blocks), _pool())
        stages, channels = residual_stages(Bottleneck, Bottleneck.expansion, width, blocks)
        super().__init__(stem, stages, channels, num_classes)


def _first(in_channels: int, width: int, blocks: Sequence[int]) -> nn.Conv2d:
    """The convolution of the stem; raises if the sizes are impossible."""
    require_whole("in_channels", in_channels, low=1)
    require_whole("width", width, low=1)
    if not blocks:
        raise SparsityError(f"blocks must hold the number of blocks of at least one stage, got {blocks!r}")
    for count in blocks:
        require_whole("the number of blocks of a stage", count, low=1)
    return nn.Conv2d(in_channels, width, 7, 2, 3, bias=False)


def _pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, 2, 1)
