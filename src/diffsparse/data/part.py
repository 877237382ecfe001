"""One part of a data set, and which share of each batch a process takes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from diffsparse.errors import require_whole

Batch: TypeAlias = tuple[Tensor, Tensor]
"""Inputs and targets, on the CPU."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """Which part of each batch this process takes: the `rank`-th of `world` equal ones.

    Example:
        >>> Share(rank=1, world=2)
        Share(rank=1, world=2)
    """

    rank: int = 0
    """This process, counted from 0."""
    world: int = 1
    """How many processes there are."""

    def __post_init__(self) -> None:
        require_whole("world", self.world, low=1)
        require_whole("rank", self.rank, low=0, high=self.world - 1)


WHOLE = Share()


class Part(Protocol):
    """The training, validation or test part of a data set.

    `batch_size` counts the entries of a batch over all processes together and must be divisible by `share.world`.
    """

    def __len__(self) -> int:
        """How many entries there are."""

    def shuffled(
        self, batch_size: int, *, seed: int, epoch: int, share: Share = WHOLE, skip: int = 0
    ) -> Iterator[Batch]:
        """One epoch of whole batches without the first `skip`, augmented.

        Order and augmentation follow from `seed`, `epoch` and the position in the epoch alone: several processes see
        together what one would see, and `skip` continues an interrupted epoch bit for bit.
        """

    def in_order(self, batch_size: int, *, share: Share = WHOLE) -> Iterator[Batch]:
        """Every entry once over all processes, as it is; the last batch may be short."""


@runtime_checkable
class Labelled(Protocol):
    """A part whose targets are classes that are known without reading the inputs."""

    @property
    def labels(self) -> Tensor:
        """(N,) whole numbers: the class of each entry."""
