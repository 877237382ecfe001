"""MobileNetV1 for small and for large images."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.errors import require_number, require_whole

STEM = 32
BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
"""Output channels and stride of each block at multiplier 1."""


class SeparableBlock(nn.Module):
    """Depthwise conv3x3-BN-ReLU, then conv1x1-BN-ReLU."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(in_channels, in_channels, 3, stride, 1, groups=in_channels, bias=False)
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.pointwise = nn.Conv2d(in_channels, out_channels, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.depthwise(x)))
        return F.relu(self.bn2(self.pointwise(x)))


class MobileNetV1(nn.Module):
    """Stem, 13 depthwise separable blocks, global pooling and a classifier.

    The blocks halve the resolution four times; with `imagenet` the stem halves it once more. Weights have PyTorch's
    default initialisation.

    Args:
        num_classes: size of the output.
        multiplier: every width c becomes int(multiplier * c).
        imagenet: whether the stem has stride 2, for large images.
        in_channels: channels of the image.

    Shape: (N, in_channels, H, W) to (N, num_classes).

    Example:
        >>> MobileNetV1(multiplier=0.25)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, num_classes: int = 10, *, multiplier: float = 1.0, imagenet: bool = False, in_channels: int = 3
    ) -> None:
        super().__init__()
        require_whole("num_classes", num_classes, low=1)
        require_whole("in_channels", in_channels, low=1)
        # a smaller one would leave the stem without channels
        require_number("multiplier", multiplier, low=1 / STEM)
        channels = int(multiplier * STEM)
        stem = nn.Conv2d(in_channels, channels, 3, 2 if imagenet else 1, 1, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(channels), nn.ReLU())
        blocks: list[nn.Module] = []
        for full_width, stride in BLOCKS:
            width = int(multiplier * full_width)
            blocks.append(SeparableBlock(channels, width, stride))
            channels = width
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1)
        logits: Tensor = self.classifier(torch.flatten(x, 1))
        return logits
