import numpy as np
import torch

from diffsparse.data.order import every_entry, random_numbers, shuffled_entries, whole_batches
from diffsparse.data.part import Share


def test_each_process_takes_its_block_of_every_whole_batch() -> None:
    assert whole_batches(13, 6, Share(rank=2, world=3)) == [range(4, 6), range(10, 12)]
    assert whole_batches(13, 6, Share(rank=2, world=3), skip=1) == [range(10, 12)]


def test_entries_in_order_are_dealt_in_turn() -> None:
    assert [list(taken) for taken in every_entry(7, 4, Share(rank=1, world=2))] == [[1, 3], [5]]
    assert every_entry(1, 2, Share(rank=1, world=2)) == []


def test_an_order_holds_every_entry_once() -> None:
    order = shuffled_entries(100, seed=5, epoch=7)
    assert order.dtype == torch.int64
    assert order.sort().values.tolist() == list(range(100))
    assert order.tolist() != list(range(100))


def test_every_argument_changes_the_random_numbers() -> None:
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 1, 0), (0, 0, 1, 1), (2**32, 0, 0), (0, 0, 0, 0)]
    drawn = {tuple(random_numbers(*key).integers(0, 2**32, 4)) for key in keys}
    assert len(drawn) == len(keys)


def test_random_numbers_of_neighbours_are_unrelated() -> None:
    draws = np.array([random_numbers(0, epoch, 1, place).random() for epoch in range(20) for place in range(50)])
    assert abs(draws.mean() - 0.5) < 0.05
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.1
