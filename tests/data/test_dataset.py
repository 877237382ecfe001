"""What a data set says about itself, and what every part guarantees: in memory or on disk, with workers or without."""

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diffsparse import SparsityError
from diffsparse.data import Batch, DataSet, Labelled, Normalisation, Part, TensorPart, open_data
from diffsparse.data.dataset import Share, every_entry, random_numbers, shuffled_entries, whole_batches
from diffsparse.data.image_folder import ImagePart, open_folder
from diffsparse.data.tensor_part import ShiftAndFlip
from tests.data.fakes import write_images


def labelled(labels: list[int]) -> TensorPart:
    images = torch.zeros(len(labels), 2, 3, 4)
    return TensorPart(images=images, labels=torch.tensor(labels), normalisation=Normalisation.of(images))


def test_the_summary_counts_the_entries_of_each_class() -> None:
    train, test = labelled([0, 0, 0, 2, 2, 1]), labelled([2])
    summary = DataSet(name="set", train=train, test=test, input_shape=(2, 3, 4), num_outputs=3).summary()
    assert summary.headings == ("images", "classes", "shape", "fewest per class", "most per class")
    assert summary.rows == {"train": ("6", "3", "2 x 3 x 4", "1", "3"), "test": ("1", "3", "2 x 3 x 4", "0", "1")}
    assert summary.caption is None


def test_a_validation_part_stands_between_the_others() -> None:
    part = labelled([0])
    data = DataSet(name="set", train=part, validation=part, test=part, input_shape=(2, 3, 4), num_outputs=1)
    assert list(data.summary().rows) == ["train", "validation", "test"]


def test_a_part_without_labels_has_no_class_counts() -> None:
    class Values:
        def __len__(self) -> int:
            return 1234

    values: Part = Values()  # type: ignore[assignment]
    data = DataSet(name="values", train=values, test=values, input_shape=(3,), num_outputs=1)
    assert data.summary().rows["train"] == ("1,234", "1", "3", "-", "-")


LENGTH = 26

# Python 3.12 warns of what DataLoader does by default
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def in_memory(length: int = LENGTH, pad: int | None = 2) -> TensorPart:
    """Random images; the label of an image is its entry."""
    images = torch.randint(0, 256, (length, 3, 5, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return TensorPart(
        images=images,
        labels=torch.arange(length),
        normalisation=Normalisation.of(images),
        augmentation=None if pad is None else ShiftAndFlip(pad=pad),
    )


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> ImagePart:
    root = tmp_path_factory.mktemp("images")
    write_images(root / "train", {"a": LENGTH // 2, "b": LENGTH // 2})
    write_images(root / "test", {"a": 1, "b": 1})
    part = open_folder(root, image_size=6).train
    assert isinstance(part, ImagePart)
    return replace(part, labels=torch.arange(LENGTH))


@pytest.fixture(params=["memory", "files", "files by workers"])
def part(request: pytest.FixtureRequest, on_disk: ImagePart) -> Part:
    if request.param == "memory":
        return in_memory()
    return replace(on_disk, workers=0 if request.param == "files" else 2)


def joined(batches: Iterator[Batch]) -> tuple[Tensor, Tensor]:
    inputs, targets = zip(*batches, strict=True)
    return torch.cat(inputs), torch.cat(targets)


def same(left: list[Batch], right: list[Batch]) -> bool:
    return len(left) == len(right) and all(
        torch.equal(one, other) for pair in zip(left, right, strict=True) for one, other in zip(*pair, strict=True)
    )


def interleaved(shares: list[list[Batch]]) -> list[Batch]:
    """What several processes see in each step, put together."""
    steps = zip(*shares, strict=True)
    return [(torch.cat([x for x, _ in step]), torch.cat([y for _, y in step])) for step in steps]


def test_an_epoch_is_whole_batches_of_different_entries(part: Part) -> None:
    batches = list(part.shuffled(8, seed=1, epoch=2))
    assert [len(inputs) for inputs, _ in batches] == [8, 8, 8]
    assert all(inputs.dtype == torch.float32 and targets.dtype == torch.int64 for inputs, targets in batches)
    entries = joined(iter(batches))[1]
    assert len(entries.unique()) == 24


def test_seed_and_epoch_decide_the_order_and_the_augmentation(part: Part) -> None:
    inputs, entries = joined(part.shuffled(26, seed=1, epoch=2))
    for seed, epoch in ((1, 3), (2, 2)):
        others, other_entries = joined(part.shuffled(26, seed=seed, epoch=epoch))
        assert not torch.equal(entries, other_entries)
        assert not torch.equal(inputs[entries.argsort()], others[other_entries.argsort()])
    again, same_entries = joined(part.shuffled(26, seed=1, epoch=2))
    assert torch.equal(entries, same_entries)
    assert torch.equal(inputs, again)


def test_two_processes_see_together_what_one_sees(part: Part) -> None:
    alone = list(part.shuffled(8, seed=3, epoch=0))
    shares = [list(part.shuffled(8, seed=3, epoch=0, share=Share(rank=rank, world=2))) for rank in range(2)]
    assert same(interleaved(shares), alone)


def test_skip_continues_an_interrupted_epoch(part: Part) -> None:
    whole = list(part.shuffled(8, seed=3, epoch=1))
    assert same(list(part.shuffled(8, seed=3, epoch=1, skip=2)), whole[2:])
    assert list(part.shuffled(8, seed=3, epoch=1, skip=3)) == []


def test_global_random_numbers_neither_matter_nor_change(part: Part) -> None:
    def seen(seed: int) -> list[Batch]:
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        return list(part.shuffled(8, seed=0, epoch=0))

    first = seen(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    assert same(list(part.shuffled(8, seed=0, epoch=0)), first)
    list(part.in_order(8))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]
    assert same(seen(2), first)


def test_in_order_has_every_entry_once_and_as_it_is(part: Part) -> None:
    inputs, entries = joined(part.in_order(8))
    assert entries.tolist() == list(range(LENGTH))
    assert [len(targets) for _, targets in part.in_order(8)] == [8, 8, 8, 2]
    for rank in range(3):
        share, taken = joined(part.in_order(6, share=Share(rank=rank, world=3)))
        assert taken.tolist() == list(range(rank, LENGTH, 3))
        assert torch.equal(share, inputs[taken])


def test_impossible_batches_are_refused_before_any_is_made(part: Part) -> None:
    with pytest.raises(SparsityError, match="divisible by the 2 processes, got 7"):
        part.shuffled(7, seed=0, epoch=0, share=Share(world=2))
    with pytest.raises(SparsityError, match="divisible by the 2 processes, got 7"):
        part.in_order(7, share=Share(world=2))
    with pytest.raises(SparsityError, match="batch_size 27 is more than the 26 entries"):
        part.shuffled(27, seed=0, epoch=0)
    with pytest.raises(SparsityError, match="batch_size must be a whole number of at least 1, got 0"):
        part.in_order(0)
    with pytest.raises(SparsityError, match=r"skip must be .* at most 3, got 4"):
        part.shuffled(8, seed=0, epoch=0, skip=4)
    with pytest.raises(SparsityError, match=r"seed must be .* got -1"):
        part.shuffled(8, seed=-1, epoch=0)
    with pytest.raises(SparsityError, match=r"epoch must be .* got 0\.5"):
        part.shuffled(8, seed=0, epoch=0.5)  # type: ignore[arg-type]


def test_parts_know_their_labels(part: Part) -> None:
    assert isinstance(part, Labelled)
    assert len(part) == LENGTH
    assert torch.equal(part.labels, torch.arange(LENGTH))


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 40),
    each=st.integers(1, 6),
    world=st.integers(1, 4),
    skip=st.integers(0, 5),
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 300),
)
def test_any_split_of_any_epoch_is_the_same_epoch(
    length: int, each: int, world: int, skip: int, seed: int, epoch: int
) -> None:
    part, batch_size = in_memory(length), each * world
    if length < batch_size:
        return
    whole = list(part.shuffled(batch_size, seed=seed, epoch=epoch))
    assert len(whole) == length // batch_size
    skip = min(skip, len(whole))
    shares = [
        list(part.shuffled(batch_size, seed=seed, epoch=epoch, skip=skip, share=Share(rank=rank, world=world)))
        for rank in range(world)
    ]
    assert same(interleaved(shares), whole[skip:])
    # a batch of another size begins with the same entries, changed in the same way
    ones = list(part.shuffled(1, seed=seed, epoch=epoch))[: len(whole) * batch_size]
    assert torch.equal(joined(iter(ones))[0], joined(iter(whole))[0])


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0), (0.5, 2)])
def test_a_share_that_cannot_be_is_refused(rank: int, world: int) -> None:
    with pytest.raises(SparsityError, match=r"(rank|world) must be a whole number"):
        Share(rank=rank, world=world)


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


def test_a_sample_comes_from_all_over_the_training_part() -> None:
    digits = open_data("digits")
    inputs = digits.sample(3)
    whole = next(digits.train.in_order(len(digits.train)))[0]
    assert torch.equal(inputs, whole[[0, (len(whole) - 1) // 2, len(whole) - 1]])
    assert torch.equal(digits.sample(10**6), whole)
    assert torch.equal(digits.example(2), torch.zeros(2, 1, 8, 8))
    assert digits.output_shape == (10,)
