"""A part of a data set in memory."""

from collections.abc import Generator
from dataclasses import dataclass

import torch
from torch import Tensor

from diffsparse.data.part import AUGMENTATION, Batch, Part, Share, as_slice, random_numbers
from diffsparse.data.prefetch import prefetched
from diffsparse.data.transform import Normalisation, ShiftAndFlip
from diffsparse.errors import SparsityError


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
    """Applied to every image, after augmentation."""
    augmentation: ShiftAndFlip | None = None
    """Applied to the images of `shuffled`; None leaves them unchanged."""

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

    def make_batches(
        self, batches: list[range], order: Tensor, share: Share, drawn_by: tuple[int, int] | None
    ) -> Generator[Batch, None, None]:
        return prefetched(self._made(batches, order, drawn_by))

    def _made(
        self, batches: list[range], order: Tensor, drawn_by: tuple[int, int] | None
    ) -> Generator[Batch, None, None]:
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
