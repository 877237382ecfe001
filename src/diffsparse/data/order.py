"""Which entries make up each batch, and the random numbers of an epoch."""

import numpy as np
import torch
from torch import Tensor

from diffsparse.data.part import Share
from diffsparse.errors import SparsityError, require_whole

# What random numbers are for; one purpose never repeats the numbers of another.
ORDER, AUGMENTATION = 0, 1


def random_numbers(seed: int, epoch: int, *purpose: int) -> np.random.Generator:
    """A generator that depends on its arguments and on nothing else.

    Example:
        >>> random_numbers(0, 3, AUGMENTATION).random() == random_numbers(0, 3, AUGMENTATION).random()
        True
    """
    require_whole("seed", seed, low=0)
    require_whole("epoch", epoch, low=0)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(epoch, *purpose)))


def shuffled_entries(length: int, seed: int, epoch: int) -> Tensor:
    """(length,) the entry at each position of an epoch, every entry once."""
    return torch.from_numpy(random_numbers(seed, epoch, ORDER).permutation(length))


def whole_batches(length: int, batch_size: int, share: Share, skip: int = 0) -> list[range]:
    """The positions this process takes of each whole batch, without the first `skip` batches.

    Example:
        >>> whole_batches(11, 4, Share(rank=1, world=2))
        [range(2, 4), range(6, 8)]
    """
    each = _each(batch_size, share)
    batches = length // batch_size
    if batches == 0:
        raise SparsityError(f"batch_size {batch_size} is more than the {length} entries there are to train on")
    require_whole("skip", skip, low=0, high=batches)
    starts = range(skip * batch_size + share.rank * each, batches * batch_size, batch_size)
    return [range(start, start + each) for start in starts]


def every_entry(length: int, batch_size: int, share: Share) -> list[range]:
    """The entries this process takes, in batches of its share of `batch_size`; the last may be short.

    Example:
        >>> every_entry(7, 4, Share(rank=0, world=2))
        [range(0, 4, 2), range(4, 8, 2)]
    """
    each = _each(batch_size, share)
    entries = range(share.rank, length, share.world)
    return [entries[start : start + each] for start in range(0, len(entries), each)]


def _each(batch_size: int, share: Share) -> int:
    require_whole("batch_size", batch_size, low=1)
    if batch_size % share.world:
        raise SparsityError(f"batch_size must be divisible by the {share.world} processes, got {batch_size}")
    return batch_size // share.world
