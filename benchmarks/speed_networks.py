"""Networks of the speed benchmark that the package does not have, and zeros for them."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.models import MobileNetV1, ResNet, create
from diffsparse.testing import zero_random_channels


def unit(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, batch norm, ReLU."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


class Basic(nn.Module):
    """Two convolutions and a shortcut, as in ResNet-18 and 34."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = unit(inputs, outputs, stride=stride), unit(outputs, outputs)[:2]
        plain = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if plain else unit(inputs, outputs, 1, stride)[:2]

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.shortcut(x))


class Inverted(nn.Module):
    """The block of MobileNetV2."""

    def __init__(self, inputs: int, outputs: int, stride: int, factor: int) -> None:
        super().__init__()
        inner = factor * inputs
        self.body = nn.Sequential(
            unit(inputs, inner, 1), unit(inner, inner, 3, stride, inner), unit(inner, outputs, 1)[:2]
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


class Pooled(nn.Module):
    """Features, global pooling and a classifier."""

    def __init__(self, features: nn.Module, width: int) -> None:
        super().__init__()
        self.features, self.head = features, nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


class UNet(nn.Module):
    """Three levels with concatenated skips."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.down = nn.ModuleList([unit(3, width), unit(width, 2 * width), unit(2 * width, 4 * width)])
        self.up = nn.ModuleList([unit(6 * width, 2 * width), unit(3 * width, width)])
        self.head = nn.Conv2d(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down[0](x)
        second = self.down[1](F.max_pool2d(first, 2))
        x = self.down[2](F.max_pool2d(second, 2))
        x = self.up[0](torch.cat([F.interpolate(x, scale_factor=2.0), second], 1))
        return self.head(self.up[1](torch.cat([F.interpolate(x, scale_factor=2.0), first], 1)))


def resnet(blocks: tuple[int, ...]) -> nn.Module:
    parts, inputs = [unit(3, 64)], 64
    for stage, count in enumerate(blocks):
        for number in range(count):
            parts.append(Basic(inputs, 64 * 2**stage, 2 if stage and not number else 1))
            inputs = 64 * 2**stage
    return Pooled(nn.Sequential(*parts), inputs)


def vgg16() -> nn.Module:
    parts: list[nn.Module] = []
    inputs = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            parts.append(unit(inputs, width))
            inputs = width
        parts.append(nn.MaxPool2d(2))
    return Pooled(nn.Sequential(*parts), 512)


def mobilenetv2() -> nn.Module:
    parts: list[nn.Module] = [unit(3, 32)]
    inputs = 32
    settings = (
        (1, 16, 1, 1),
        (6, 24, 2, 1),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for factor, width, count, stride in settings:
        for number in range(count):
            parts.append(Inverted(inputs, width, 1 if number else stride, factor))
            inputs = width
    return Pooled(nn.Sequential(*parts, unit(inputs, 1280, 1)), 1280)


def bert() -> nn.Module:
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "preresnet164": (lambda: create("preresnet164", 10, in_channels=3), (3, 32, 32)),
    "preresnet20": (lambda: create("preresnet20", 10, in_channels=3), (3, 32, 32)),
    "resnet18": (lambda: resnet((2, 2, 2, 2)), (3, 32, 32)),
    "resnet34": (lambda: resnet((3, 4, 6, 3)), (3, 32, 32)),
    "resnet50": (lambda: ResNet(10), (3, 64, 64)),
    "vgg16": (vgg16, (3, 32, 32)),
    "mobilenetv1": (lambda: MobileNetV1(10), (3, 64, 64)),
    "mobilenetv2": (mobilenetv2, (3, 32, 32)),
    "densenet40": (lambda: create("densenet40", 10, in_channels=3), (3, 32, 32)),
    "unet": (UNet, (3, 64, 64)),
    "bert": (bert, (64, 256)),
}
"""By name: how to make it, and the shape of one input."""


@torch.no_grad()
def zero_half(model: nn.Module, seed: int = 0) -> nn.Module:
    """Half of the channels of every batch norm, and half of the heads and neurons of encoders, chosen at random."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            zero_random_channels(module, 0.5, generator)
        if isinstance(module, nn.TransformerEncoderLayer):
            zero_random_channels(module.linear1, 0.5, generator)
            attention = module.self_attn
            heads = torch.randperm(attention.num_heads, generator=generator)[: attention.num_heads // 2]
            columns = attention.out_proj.weight.view(attention.embed_dim, attention.num_heads, -1)
            columns[:, heads] = 0
    return model.eval()
