"""A part of a data set that lies on disk as image files."""

import os
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from diffsparse.data.image import read_image
from diffsparse.data.normalise import Normalisation
from diffsparse.data.order import AUGMENTATION, every_entry, random_numbers, shuffled_entries, whole_batches
from diffsparse.data.part import WHOLE, Batch, Share
from diffsparse.errors import SparsityError, require_whole

# The usual figures of ImageNet, for bytes.
IMAGENET = Normalisation(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))
MOST_WORKERS = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class ImagePart:
    """Image files and labels; worker processes read, cut and scale them ahead of use."""

    files: tuple[str, ...]
    """Where each image is."""
    labels: Tensor
    """(N,) int64, the class of each image."""
    size: int
    """Width and height of the inputs made from them."""
    augment: bool
    """Whether `shuffled` cuts at random places and mirrors, or takes the middle as `in_order` does."""
    workers: int | None = None
    """How many processes read; by default this process's share of the cores."""

    def __post_init__(self) -> None:
        require_whole("image_size", self.size, low=1)
        if self.workers is not None:
            require_whole("workers", self.workers, low=0)
        assert self.labels.shape == (len(self.files),)

    def __len__(self) -> int:
        return len(self.files)

    def shuffled(
        self, batch_size: int, *, seed: int, epoch: int, share: Share = WHOLE, skip: int = 0
    ) -> Generator[Batch, None, None]:
        """One epoch of whole batches in the order of `seed` and `epoch`, augmented; see `Part`."""
        batches = whole_batches(len(self), batch_size, share, skip)
        order = shuffled_entries(len(self), seed, epoch)
        return self._batches(batches, _Reader(self, order, (seed, epoch) if self.augment else None), share)

    def in_order(self, batch_size: int, *, share: Share = WHOLE) -> Generator[Batch, None, None]:
        """Every entry once over all processes, not augmented; see `Part`."""
        batches = every_entry(len(self), batch_size, share)
        return self._batches(batches, _Reader(self, torch.arange(len(self)), None), share)

    def _batches(self, batches: list[range], reader: "_Reader", share: Share) -> Generator[Batch, None, None]:
        workers = cores_each(share) if self.workers is None else self.workers
        loader = DataLoader(
            reader,
            # one batch of positions is one item to fetch
            sampler=batches,
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=min(workers, len(batches)),
            # without one, starting the workers would use up a number of torch's global generator
            generator=torch.Generator(),
        )
        for batch in loader:
            if isinstance(batch, str):
                raise SparsityError(batch)
            yield batch


@dataclass(frozen=True, eq=False)
class _Reader(Dataset["Batch | str"]):
    """Makes the batch of given positions, in a worker process."""

    part: ImagePart
    order: Tensor
    augmented_by: tuple[int, int] | None

    def __getitem__(self, positions: range) -> Batch | str:
        """The batch, or what is wrong with it: an error would come out of a worker with its traceback as text."""
        try:
            images = torch.stack([self._image(position) for position in positions])
        except SparsityError as error:
            return str(error)
        return IMAGENET(images), self.part.labels[self.order[positions.start : positions.stop : positions.step]]

    def _image(self, position: int) -> Tensor:
        random = None
        if self.augmented_by is not None:
            random = random_numbers(*self.augmented_by, AUGMENTATION, position)
        return read_image(self.part.files[int(self.order[position])], self.part.size, random)


def cores_each(share: Share) -> int:
    """How many cores of this machine fall to each process, at least one and at most a useful number."""
    # macOS and Windows do not say which cores are for this process
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # torchrun says how many of the processes are on this machine
    here = int(os.environ.get("LOCAL_WORLD_SIZE", share.world))
    return max(1, min(cores // here, MOST_WORKERS))


def _as_it_is(batch: Any) -> Any:
    return batch
