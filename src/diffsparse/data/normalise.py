"""Zero mean and unit variance for each channel."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from diffsparse.errors import SparsityError


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """(image - mean) / std for each channel, in the units of the stored images: 0 to 255 for bytes.

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
            raise SparsityError(f"a mean and a std above 0 are needed a channel, got {self.mean} and {self.std}")

    @classmethod
    def of(cls, images: Tensor) -> Self:
        """The statistics of (N, C, H, W) images; a constant channel is only centred."""
        if images.dtype == torch.uint8:
            var, mean = _of_bytes(images)
        else:
            var, mean = torch.var_mean(images.double(), (0, 2, 3), correction=0)
        std = var.sqrt()
        return cls(mean=tuple(mean.tolist()), std=tuple(std.where(std > 0, 1.0).tolist()))

    def __call__(self, images: Tensor) -> Tensor:
        """float32 images of zero mean and unit variance."""
        mean, std = torch.tensor(self.mean)[:, None, None], torch.tensor(self.std)[:, None, None]
        # a copy even of float32 images, as what follows is done in place
        return images.to(torch.float32, copy=True).sub_(mean).div_(std)


def _of_bytes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Exact variance and mean from how often each value occurs; a float64 copy would be eight times as large."""
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)])
    shares = counts.double() / counts.sum(1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64)
    mean = (shares * values).sum(1)
    return (shares * (values - mean[:, None]).square()).sum(1), mean
