import pytest
import torch
from torch import Tensor

from diffsparse import SparsityError
from diffsparse.data.part import Part, Share
from diffsparse.traffic.data import TrafficPart

STEPS, NODES, HISTORY = 21, 3, 4


@pytest.fixture
def part() -> TrafficPart:
    """The speed of node n at step t is 10 t + n, so that every number tells where it comes from."""
    speeds = 10.0 * torch.arange(STEPS).unsqueeze(1) + torch.arange(NODES) + 1
    known = torch.where(torch.arange(STEPS).unsqueeze(1) % 5 == 0, 0, speeds)
    return TrafficPart(speeds=speeds, known=known, history=HISTORY)


def joined(batches: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([inputs for inputs, _ in batches]), torch.cat([targets for _, targets in batches])


def starts(batches: list[tuple[Tensor, Tensor]]) -> list[int]:
    return [int(value) // 10 for value in joined(batches)[0][:, 0, 0]]


def test_windows_and_targets_are_slices_of_the_steps(part: TrafficPart) -> None:
    inputs, targets = joined(list(part.in_order(5)))
    assert len(part) == STEPS - HISTORY == len(inputs) == len(targets)
    for start in range(len(part)):
        assert torch.equal(inputs[start], part.speeds[start : start + HISTORY])
        assert torch.equal(targets[start], part.known[start + HISTORY])
    assert (targets == 0).any()
    assert (inputs > 0).all()


def test_shapes_and_types(part: TrafficPart) -> None:
    checked: Part = part
    inputs, targets = next(iter(checked.shuffled(6, seed=0, epoch=0)))
    assert inputs.shape == (6, HISTORY, NODES)
    assert targets.shape == (6, NODES)
    assert inputs.dtype == targets.dtype == torch.float32


def test_an_epoch_has_whole_batches_without_repeats(part: TrafficPart) -> None:
    batches = list(part.shuffled(5, seed=1, epoch=2))
    assert [len(inputs) for inputs, _ in batches] == [5, 5, 5]
    seen = starts(batches)
    assert len(set(seen)) == 15
    assert seen != sorted(seen)


def test_order_depends_on_seed_and_epoch_alone(part: TrafficPart) -> None:
    first = starts(list(part.shuffled(5, seed=1, epoch=2)))
    torch.manual_seed(99)
    assert starts(list(part.shuffled(5, seed=1, epoch=2))) == first
    assert starts(list(part.shuffled(5, seed=1, epoch=3))) != first
    assert starts(list(part.shuffled(5, seed=2, epoch=2))) != first


def test_two_processes_see_together_what_one_sees(part: TrafficPart) -> None:
    whole = list(part.shuffled(6, seed=0, epoch=0))
    shares = [list(part.shuffled(6, seed=0, epoch=0, share=Share(rank=rank, world=2))) for rank in (0, 1)]
    for alone, *halves in zip(whole, *shares, strict=True):
        both = joined(halves)
        assert torch.equal(both[0], alone[0])
        assert torch.equal(both[1], alone[1])
    in_order = [starts(list(part.in_order(6, share=Share(rank=rank, world=2)))) for rank in (0, 1)]
    assert sorted(in_order[0] + in_order[1]) == list(range(len(part)))


def test_skip_continues_an_epoch(part: TrafficPart) -> None:
    whole = starts(list(part.shuffled(4, seed=0, epoch=5)))
    assert starts(list(part.shuffled(4, seed=0, epoch=5, skip=3))) == whole[12:]


def test_batches_are_copies(part: TrafficPart) -> None:
    before = part.speeds.clone()
    for inputs, targets in part.in_order(4):
        inputs.zero_()
        targets.zero_()
    assert torch.equal(part.speeds, before)


def test_wrong_arguments_are_named(part: TrafficPart) -> None:
    with pytest.raises(SparsityError, match="21 steps are too few for 21 past ones and the next"):
        TrafficPart(speeds=part.speeds, known=part.known, history=21)
    with pytest.raises(SparsityError, match="history must be a whole number of at least 1, got 0"):
        TrafficPart(speeds=part.speeds, known=part.known, history=0)
    with pytest.raises(SparsityError, match=r"got \(21, 3\) and \(20, 3\)"):
        TrafficPart(speeds=part.speeds, known=part.known[1:], history=4)
    with pytest.raises(SparsityError, match="batch_size 18 is more than the 17 entries"):
        part.shuffled(18, seed=0, epoch=0)
    with pytest.raises(SparsityError, match="divisible by the 2 processes, got 5"):
        part.in_order(5, share=Share(rank=0, world=2))
