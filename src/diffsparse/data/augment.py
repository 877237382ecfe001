"""Random shifts and mirror images of a whole batch at once."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diffsparse.errors import require_whole


@dataclass(frozen=True, kw_only=True)
class ShiftAndFlip:
    """Pad with zeros, cut the original size out at a random place, mirror half of the images left to right."""

    pad: int = 4
    """Zeros added on every side: the largest shift."""

    def __post_init__(self) -> None:
        require_whole("pad", self.pad, low=0)

    def draw(self, count: int, random: np.random.Generator) -> Tensor:
        """(count, 3): the row and column where to cut each image out of the padded one, and 1 to mirror it."""
        corners = random.integers(0, 2 * self.pad, size=(count, 2), endpoint=True)
        mirrored = random.integers(0, 2, size=(count, 1))
        return torch.from_numpy(np.concatenate([corners, mirrored], axis=1))

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """(N, C, H, W) images of any dtype, changed as their (N, 3) draws say."""
        height, width = images.shape[2:]
        down, right = torch.arange(height), torch.arange(width)
        rows = draws[:, :1] + down
        columns = draws[:, 1:2] + torch.where(draws[:, 2:] == 1, right.flip(0), right)
        # the place of each pixel in the flattened padded image, (N, 1, H * W): shift and flip are one gather
        places = (rows[:, :, None] * (width + 2 * self.pad) + columns[:, None, :]).reshape(len(images), 1, -1)
        padded = F.pad(images, (self.pad,) * 4).flatten(2)
        return padded.gather(2, places.expand(-1, images.shape[1], -1)).view_as(images)
