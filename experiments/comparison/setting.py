"""Networks, data and lengths of the comparison."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.data.archive import locate
from diffsparse.data.small_images import CIFAR10
from diffsparse.models import PreResNet

BATCH = 128
PIECES = 4
"""Parts of a batch that are shifted alike."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One network and one length of training."""

    network: Callable[[float], nn.Module]
    """Makes the network; its argument is a factor on all widths."""
    widths: tuple[float, ...]
    """Factors to choose a uniformly narrow network from."""
    side: int
    """CIFAR-10 is averaged to this many pixels."""
    epochs: int
    seeds: int
    budgets: tuple[float, ...]
    channels_last: bool = False
    """Memory format of images and networks; faster for large images."""

    @property
    def memory_format(self) -> torch.memory_format:
        """Of images and networks."""
        return torch.channels_last if self.channels_last else torch.contiguous_format


class VggLike(nn.Module):
    """Six convolutions of 3 x 3 in three stages, each with batch norm, and one linear layer."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for stage, width in enumerate((32, 64, 128)):
            layers += [nn.MaxPool2d(2)] if stage else []
            for _ in range(2):
                channels = max(1, round(factor * width))
                layers += [nn.Conv2d(before, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
                before = channels
        self.features, self.classifier = nn.Sequential(*layers), nn.Linear(before, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits


class MobileNetLike(nn.Module):
    """A stem and six depthwise-separable blocks."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        before = max(1, round(factor * 32))
        layers: list[nn.Module] = [nn.Conv2d(3, before, 3, 1, 1, bias=False), nn.BatchNorm2d(before), nn.ReLU()]
        for width, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
            channels = max(1, round(factor * width))
            layers += [
                nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False),
                nn.BatchNorm2d(before),
                nn.ReLU(),
                nn.Conv2d(before, channels, 1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(),
            ]
            before = channels
        self.features, self.classifier = nn.Sequential(*layers), nn.Linear(before, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits


def _resnet(width: int, factor: float) -> nn.Module:
    return PreResNet(20, 10, width=max(1, round(factor * width)))


_SIXTEENTHS = tuple(width / 16 for width in range(2, 16))
_FINE = tuple(width / 32 for width in range(4, 32))
SETTINGS = {
    "quick": Setting(
        network=partial(_resnet, 16), widths=_SIXTEENTHS, side=8, epochs=8, seeds=5, budgets=(0.5, 0.3, 0.15, 0.08)
    ),
    "full": Setting(
        network=partial(_resnet, 8), widths=_SIXTEENTHS, side=32, epochs=10, seeds=2, budgets=(0.3,), channels_last=True
    ),
    "vgg": Setting(network=VggLike, widths=_FINE, side=8, epochs=8, seeds=2, budgets=(0.3,)),
    "mobilenet": Setting(network=MobileNetLike, widths=_FINE, side=8, epochs=8, seeds=2, budgets=(0.3,)),
}


class Images:
    """CIFAR-10 at a setting's size; training batches are shifted and mirrored at random."""

    def __init__(self, root: Path, setting: Setting) -> None:
        self.side, self.margin, self.format = (side := setting.side), max(1, side // 8), setting.memory_format
        root = locate(CIFAR10.archive, root, fetch=False)
        train, self.train_labels = _read(root, [f"data_batch_{i}.bin" for i in range(1, 6)], side)
        test, self.test_labels = _read(root, ["test_batch.bin"], side)
        mean, spread = train.mean((0, 2, 3), keepdim=True), train.std((0, 2, 3), keepdim=True)
        self.train = F.pad((train - mean) / spread, (self.margin,) * 4)
        self.test = ((test - mean) / spread).contiguous(memory_format=self.format)

    @property
    def steps(self) -> int:
        """Steps per epoch."""
        return len(self.train) // BATCH

    def epoch(self, draw: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch."""
        order = torch.randperm(len(self.train), generator=draw)
        for start in range(0, self.steps * BATCH, BATCH):
            index = order[start : start + BATCH]
            images = torch.empty(BATCH, 3, self.side, self.side).contiguous(memory_format=self.format)
            for part in torch.arange(BATCH).chunk(PIECES):
                down, right = torch.randint(0, 2 * self.margin + 1, (2,), generator=draw).tolist()
                images[part] = self.train[index[part], :, down : down + self.side, right : right + self.side]
            flip = torch.rand(BATCH, generator=draw) < 0.5
            images[flip] = images[flip].flip(-1)
            yield images, self.train_labels[index]


def _read(root: Path, names: list[str], side: int) -> tuple[Tensor, Tensor]:
    raw = np.concatenate([np.fromfile(root / name, np.uint8).reshape(-1, 3073) for name in names])
    images = torch.from_numpy(raw[:, 1:].reshape(-1, 3, 32, 32)).float() / 255
    return F.avg_pool2d(images, 32 // side), torch.from_numpy(raw[:, 0]).long()
