"""What is done to a whole batch of images: random shifts and flips, then normalisation."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diffsparse.errors import SparsityError, require_whole


@dataclass(frozen=True, kw_only=True)
class ShiftAndFlip:
    """Pads with zeros, crops to the original size at a random place, and mirrors half of the images left to right."""

    pad: int = 4
    """Zeros added on every side: the largest shift."""

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
    """(image - mean) / std per channel, in the units of the stored images: 0 to 255 for bytes.

    Example:
        >>> twice = Normalisation(mean=(1.0,), std=(0.5,))
        >>> twice(torch.tensor([[[[1, 3]]]], dtype=torch.uint8)).flatten()
        tensor([0., 4.])
    """

    mean: tuple[float, ...]
    """Mean of each channel."""
    std: tuple[float, ...]
    """Standard deviation of each channel."""

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
