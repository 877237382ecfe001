"""A part of a data set that lies in memory."""

from collections.abc import Generator
from dataclasses import dataclass

import torch
from torch import Tensor

from diffsparse.data.augment import ShiftAndFlip
from diffsparse.data.normalise import Normalisation
from diffsparse.data.order import AUGMENTATION, every_entry, random_numbers, shuffled_entries, whole_batches
from diffsparse.data.part import WHOLE, Batch, Share
from diffsparse.data.prefetch import ahead
from diffsparse.errors import SparsityError


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorPart:
    """Images and labels in memory, made into batches by a background thread.

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
    """Applied to the images of `shuffled`; None leaves them as they are."""

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or not (self.images.dtype == torch.uint8 or self.images.is_floating_point()):
            found = f"{tuple(self.images.shape)} of {self.images.dtype}"
            raise SparsityError(f"images must be (N, C, H, W) bytes or floating-point numbers, got {found}")
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != torch.int64:
            found = f"{tuple(self.labels.shape)} of {self.labels.dtype}"
            raise SparsityError(f"labels must be ({len(self.images)},) of torch.int64, one an image, got {found}")
        if len(self.normalisation.mean) != self.images.shape[1]:
            raise SparsityError(
                f"normalisation is for {len(self.normalisation.mean)} channels, the images have {self.images.shape[1]}"
            )

    def __len__(self) -> int:
        return len(self.images)

    def shuffled(
        self, batch_size: int, *, seed: int, epoch: int, share: Share = WHOLE, skip: int = 0
    ) -> Generator[Batch, None, None]:
        """One epoch of whole batches in the order of `seed` and `epoch`, augmented; see `Part`."""
        batches = whole_batches(len(self), batch_size, share, skip)
        order = shuffled_entries(len(self), seed, epoch)
        draws = None
        if self.augmentation is not None:
            # drawn for the whole epoch: what a position gets depends on no batch size, share or skip
            draws = self.augmentation.draw(len(self), random_numbers(seed, epoch, AUGMENTATION))
        return ahead(self._batches(batches, order, draws))

    def in_order(self, batch_size: int, *, share: Share = WHOLE) -> Generator[Batch, None, None]:
        """Every entry once over all processes, not augmented; see `Part`."""
        batches = every_entry(len(self), batch_size, share)
        return ahead(self._batches(batches, torch.arange(len(self)), None))

    def _batches(self, batches: list[range], order: Tensor, draws: Tensor | None) -> Generator[Batch, None, None]:
        for positions in batches:
            taken = slice(positions.start, positions.stop, positions.step)
            entries = order[taken]
            images = self.images[entries]
            if draws is not None:
                assert self.augmentation is not None
                images = self.augmentation(images, draws[taken])
            yield self.normalisation(images), self.labels[entries]
