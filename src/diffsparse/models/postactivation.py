"""Networks with batch norms after the convolutions: ResNets for large images, and MobileNetV1."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.errors import require_number, require_whole
from diffsparse.models.preactivation import RESNET50, initialise, residual_stages, shortcut, stem_convolution

STEM = 32
# Output channels and stride of each block at multiplier 1.
BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))


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
        blocks: blocks of each stage; by default those of ResNet-50.
        width: channels of the stem and planes of the first stage; each further stage doubles the planes.

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
        first = stem_convolution(in_channels, width, blocks)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        block = PostActivationBottleneck
        self.stages, channels = residual_stages(block, block.expansion, width, blocks)
        self.classifier = nn.Linear(channels, num_classes)
        self.apply(initialise)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.stages(self.stem(x)), 1)
        logits: Tensor = self.classifier(torch.flatten(x, 1))
        return logits


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
        multiplier: every width c becomes int(multiplier * c).
        imagenet: whether the stem has stride 2, for large images.

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
