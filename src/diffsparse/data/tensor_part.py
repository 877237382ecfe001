"""A part of a data set in memory: batches are made in the background, shifted and flipped, and normalised."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diffsparse.data.dataset import AUGMENTATION, Batch, Draws, Part, Share, as_slice, random_numbers
from diffsparse.data.prefetch import prefetched
from diffsparse.errors import SparsityError, require_whole


@dataclass(frozen=True, kw_only=True)
class ShiftAndFlip:
    """Pads with `pad` zeros on every side, crops at a random place, and mirrors half of the images left to right."""

    pad: int = 4

    def __post_init__(self) -> None:
        require_whole("pad", self.pad, low=0)

    def draw(self, count: int, random: np.random.Generator) -> Tensor:
        """(count, 3): row and column of each crop in the padded image, and 1 to mirror it."""
        corners = random.integers(0, 2 * self.pad, size=(count, 2), endpoint=True)
        mirrored = random.integers(0, 2, size=(count, 1))
        return torch.from_numpy(np.concatenate([corners, mirrored], axis=1))

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """(N, C, H, W) images of any dtype, changed according to their (N, 3) draws."""
        height, width = images.shape[2:]
        down, right = torch.arange(height), torch.arange(width)
        rows = draws[:, :1] + down
        columns = draws[:, 1:2] + torch.where(draws[:, 2:] == 1, right.flip(0), right)
        # index of each pixel in the flattened padded image, (N, 1, H * W): shift and flip are one gather
        places = (rows[:, :, None] * (width + 2 * self.pad) + columns[:, None, :]).reshape(len(images), 1, -1)
        padded = F.pad(images, (self.pad,) * 4).flatten(2)
        return padded.gather(2, places.expand(-1, images.shape[1], -1)).view_as(images)


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """(image - mean) / std per channel, in the units of the stored images: 0 to 255 for bytes."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(value > 0 for value in self.std):
            raise SparsityError(f"each channel needs a mean and a std above 0, got {self.mean} and {self.std}")

    @classmethod
    def of(cls, images: Tensor) -> Self:
        """The statistics of (N, C, H, W) images; a constant channel gets a std of 1."""
        if images.dtype == torch.uint8:
            var, mean = _byte_statistics(images)
        else:
            var, mean = torch.var_mean(images.double(), (0, 2, 3), correction=0)
        std = var.sqrt()
        return cls(mean=tuple(mean.tolist()), std=tuple(std.where(std > 0, 1.0).tolist()))

    def __call__(self, images: Tensor) -> Tensor:
        """The images in float32, normalised."""
        mean, std = torch.tensor(self.mean)[:, None, None], torch.tensor(self.std)[:, None, None]
        # copy float32 images too: the rest happens in place
        return images.to(torch.float32, copy=True).sub_(mean).div_(std)


def _byte_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Exact variance and mean from a histogram; a float64 copy of the images would be eight times as large."""
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)])
    shares = counts.double() / counts.sum(1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64)
    mean = (shares * values).sum(1)
    return (shares * (values - mean[:, None]).square()).sum(1), mean


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorPart(Part):
    """Images and labels in memory; a background thread makes the batches.

    Example:
        >>> images, labels = torch.arange(4.0).reshape(4, 1, 1, 1), torch.tensor([0, 1, 0, 1])
        >>> part = TensorPart(images=images, labels=labels, normalisation=Normalisation(mean=(1.0,), std=(2.0,)))
        >>> [(inputs.flatten().tolist(), targets.tolist()) for inputs, targets in part.in_order(3)]
        [([-0.5, 0.0, 0.5], [0, 1, 0]), ([1.0], [1])]
    """

    images: Tensor
    """(N, C, H, W), bytes or floating-point numbers."""
    labels: Tensor
    """(N,) int64, the class of each image."""
    normalisation: Normalisation
    augmentation: ShiftAndFlip | None = None
    """Applied to the images of `shuffled`, before normalisation; None leaves them unchanged."""

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or not (self.images.dtype == torch.uint8 or self.images.is_floating_point()):
            found = f"{tuple(self.images.shape)} of {self.images.dtype}"
            raise SparsityError(f"images must be (N, C, H, W) bytes or floating-point numbers, got {found}")
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != torch.int64:
            found = f"{tuple(self.labels.shape)} of {self.labels.dtype}"
            raise SparsityError(f"labels must be ({len(self.images)},) of torch.int64, one per image, got {found}")
        expected, channels = len(self.normalisation.mean), self.images.shape[1]
        if expected != channels:
            raise SparsityError(f"normalisation is for {expected} channels, the images have {channels}")

    def __len__(self) -> int:
        return len(self.images)

    def make_batches(self, batches: list[range], order: Tensor, share: Share, drawn_by: Draws) -> Iterator[Batch]:
        return prefetched(self._made(batches, order, drawn_by))

    def _made(self, batches: list[range], order: Tensor, drawn_by: Draws) -> Generator[Batch, None, None]:
        draws = None
        if self.augmentation is not None and drawn_by is not None:
            # drawn for the whole epoch, so that no batch size, share or skip changes what a position gets
            draws = self.augmentation.draw(len(self), random_numbers(*drawn_by, AUGMENTATION))
        for positions in batches:
            entries = order[as_slice(positions)]
            images = self.images[entries]
            if self.augmentation is not None and draws is not None:
                images = self.augmentation(images, draws[as_slice(positions)])
            yield self.normalisation(images), self.labels[entries]
