"""A data set and its parts: how entries become batches, in which order, and which of them a process takes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from diffsparse.errors import SparsityError, require_whole

# Inputs and targets, on the CPU.
Batch: TypeAlias = tuple[Tensor, Tensor]
# Seed and epoch of the augmentation; None means no augmentation.
Draws: TypeAlias = tuple[int, int] | None

# What random numbers are for; each purpose has its own stream.
ORDER, AUGMENTATION = 0, 1


@dataclass(frozen=True, kw_only=True)
class Share:
    """The part of each batch that this process takes: number `rank`, counted from 0, of `world` equal ones."""

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        require_whole("world", self.world, low=1)
        require_whole("rank", self.rank, low=0, high=self.world - 1)


WHOLE = Share()


class Part(ABC):
    """The training, validation or test part of a data set; a subclass has a length and makes the batches.

    `batch_size` counts the entries of a batch over all processes and must be divisible by `share.world`.
    """

    @abstractmethod
    def __len__(self) -> int:
        """The number of entries."""

    @abstractmethod
    def make_batches(self, batches: list[range], order: Tensor, share: Share, drawn_by: Draws) -> Iterator[Batch]:
        """One batch per range of positions; position i holds the entry `order[i]`."""

    def shuffled(
        self, batch_size: int, *, seed: int, epoch: int, share: Share = WHOLE, skip: int = 0
    ) -> Iterator[Batch]:
        """One epoch of full batches without the first `skip`, augmented.

        Order and augmentation depend only on `seed`, `epoch` and the position in the epoch. So several processes
        together see what one process would see, and `skip` resumes an interrupted epoch bit for bit.
        """
        batches = whole_batches(len(self), batch_size, share, skip)
        return self.make_batches(batches, shuffled_entries(len(self), seed, epoch), share, (seed, epoch))

    def in_order(self, batch_size: int, *, share: Share = WHOLE) -> Iterator[Batch]:
        """Every entry once over all processes, not augmented; the last batch may be smaller."""
        return self.make_batches(every_entry(len(self), batch_size, share), torch.arange(len(self)), share, None)


@runtime_checkable
class Labelled(Protocol):
    """A part whose classes are known without reading the inputs."""

    @property
    def labels(self) -> Tensor:
        """The class of each entry, (N,)."""


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """A table that describes a data set: the cells of each part under `headings`, and a sentence below."""

    headings: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]
    caption: str | None = None


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Parts to train and test on, the shape of an input and the number of outputs."""

    name: str
    """Its name on the command line."""
    train: Part
    test: Part
    """Entries that training never sees."""
    input_shape: tuple[int, ...]
    """Shape of one input, for example (3, 32, 32)."""
    num_outputs: int
    """The number of classes, or of values to predict."""
    validation: Part | None = None
    """Entries to choose settings with, if the data set has any."""
    task: str = "classification"
    """The registered task that is learned from it."""
    classes: tuple[str, ...] = ()
    """Names of the classes, if known."""

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of what a network gives for one input; override it if that is not one number per output."""
        return (self.num_outputs,)

    @property
    def unit(self) -> str:
        """What its inputs are called, in plural."""
        return "images" if len(self.input_shape) == 3 else "inputs"

    def example(self, count: int) -> Tensor:
        """Inputs of the right shape, to count and compact with; override it if zeros are no inputs."""
        return torch.zeros(count, *self.input_shape)

    def sample(self, most: int) -> Tensor:
        """Inputs from all over the training part, not augmented: `most` of them, or all that there are."""
        count = min(most, len(self.train))
        entries = torch.linspace(0, len(self.train) - 1, count).long()
        return next(self.train.make_batches([range(count)], entries, WHOLE, None))[0]

    def summary(self) -> DataSummary:
        """What `diffsparse data` prints; override it if your data set is not made of images and classes."""
        shape = " x ".join(map(str, self.input_shape))
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        return DataSummary(
            headings=("images", "classes", "shape", "fewest per class", "most per class"),
            rows={
                name: (f"{len(part):,}", str(self.num_outputs), shape, *self._class_sizes(part))
                for name, part in parts.items()
                if part is not None
            },
        )

    def _class_sizes(self, part: Part) -> tuple[str, str]:
        if not isinstance(part, Labelled):
            return "-", "-"
        counts = part.labels.bincount(minlength=self.num_outputs)
        return f"{int(counts.min()):,}", f"{int(counts.max()):,}"


def random_numbers(seed: int, epoch: int, *purpose: int) -> np.random.Generator:
    """A generator that depends only on its arguments."""
    require_whole("seed", seed, low=0)
    require_whole("epoch", epoch, low=0)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(epoch, *purpose)))


def shuffled_entries(length: int, seed: int, epoch: int) -> Tensor:
    """The entry at each position of an epoch, shape (length,)."""
    return torch.from_numpy(random_numbers(seed, epoch, ORDER).permutation(length))


def whole_batches(length: int, batch_size: int, share: Share, skip: int = 0) -> list[range]:
    """The positions this process takes from each full batch, without the first `skip` batches."""
    each = _per_process(batch_size, share)
    batches = length // batch_size
    if batches == 0:
        raise SparsityError(f"batch_size {batch_size} is more than the {length} entries of the part")
    require_whole("skip", skip, low=0, high=batches)
    starts = range(skip * batch_size + share.rank * each, batches * batch_size, batch_size)
    return [range(start, start + each) for start in starts]


def every_entry(length: int, batch_size: int, share: Share) -> list[range]:
    """The entries this process takes, in batches of its share of `batch_size`; the last may be smaller."""
    each = _per_process(batch_size, share)
    entries = range(share.rank, length, share.world)
    return [entries[start : start + each] for start in range(0, len(entries), each)]


def as_slice(positions: range) -> slice:
    """The slice that takes the same positions from a tensor."""
    return slice(positions.start, positions.stop, positions.step)


def _per_process(batch_size: int, share: Share) -> int:
    require_whole("batch_size", batch_size, low=1)
    if batch_size % share.world:
        raise SparsityError(f"batch_size must be divisible by the {share.world} processes, got {batch_size}")
    return batch_size // share.world
