import pytest
import torch
from torch import Tensor

from diffsparse import SparsityError
from diffsparse.data.dataset import DataSet, Part, Share
from diffsparse.traffic.data import TrafficPart, filled, split, traffic_data
from diffsparse.traffic.reading import Speeds

SPEEDS = Speeds(values=torch.rand(200, 3).double() + 30, names=("a", "b", "c"))


def test_data_set_says_what_a_model_must_know() -> None:
    weights = torch.tensor([[1.0, 0.5, 0], [0, 1, 0], [0, 0.1, 1]])
    places = torch.rand(3, 2)
    data = traffic_data("three", SPEEDS, weights, history=4, positions=places)
    assert isinstance(data, DataSet)
    assert (data.name, data.input_shape, data.num_outputs, data.node_names) == ("three", (4, 3), 3, ("a", "b", "c"))
    assert data.adjacency.tolist() == [[False, True, False], [False, False, False], [False, True, False]]
    assert data.positions is places
    inputs, targets = next(iter(data.test.in_order(7)))
    assert inputs.shape == (7, *data.input_shape)
    assert targets.shape == (7, data.num_outputs)
    training = SPEEDS.values[:144]
    assert data.mean == pytest.approx(training.mean().item())
    assert data.std == pytest.approx(training.std(correction=0).item())


@pytest.mark.parametrize("shape", [(2, 2), (4, 4), (3, 2)])
def test_a_map_of_other_nodes_is_named(shape: tuple[int, int]) -> None:
    with pytest.raises(
        SparsityError, match=rf"three: the speeds are of 3 nodes, the map is \({shape[0]}, {shape[1]}\)"
    ):
        traffic_data("three", SPEEDS, torch.zeros(shape))


def test_the_summary_counts_windows_and_missing_speeds() -> None:
    values = SPEEDS.values.clone()
    values[150:, 0] = 0
    data = traffic_data("three", Speeds(values=values, names=SPEEDS.names), torch.ones(3, 3), history=4)
    summary = data.summary()
    assert summary.headings == ("windows", "steps seen", "nodes", "speeds missing")
    assert summary.rows["train"] == ("140", "4", "3", "0.0%")
    assert summary.rows["test"] == ("36", "4", "3", "33.3%")
    assert list(summary.rows) == ["train", "validation", "test"]
    assert summary.caption == "6 links on the map"


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


def counted(steps: int) -> Speeds:
    """Speeds that are the number of their step, from 1."""
    return Speeds(values=torch.arange(1.0, steps + 1).double().unsqueeze(1), names=("a",))


def test_parts_follow_each_other_and_share_no_step() -> None:
    parts = split(counted(200), history=8)
    ranges = [(part.known[0].item(), part.known[-1].item()) for part in (parts.train, parts.validation, parts.test)]
    assert ranges == [(1, 144), (145, 160), (161, 200)]


def test_no_window_reaches_over_a_border() -> None:
    parts = split(counted(200), history=8)
    for part, first, last in ((parts.train, 1, 144), (parts.validation, 145, 160), (parts.test, 161, 200)):
        inputs, targets = next(iter(part.in_order(1000)))
        assert inputs.min() == first
        assert targets.max() == last
        assert len(part) == last - first + 1 - 8


def test_statistics_are_those_of_the_known_training_speeds() -> None:
    values = torch.tensor([50.0, 70.0]).repeat(100).double().unsqueeze(1)
    values[:144:3] = 0
    values[144:] = 10
    parts = split(Speeds(values=values, names=("a",)), history=2)
    assert parts.mean == pytest.approx(60)
    assert parts.std == pytest.approx(10)


def test_constant_speeds_have_a_std_to_divide_by() -> None:
    assert split(Speeds(values=torch.full((200, 2), 30.0).double(), names=("a", "b")), history=2).std == 1


def test_gaps_are_filled_from_the_past_of_the_part_and_stay_missing_as_targets() -> None:
    values = counted(200).values.repeat(1, 2)
    values[[0, 10, 11, 144, 160, 170], 0] = 0
    parts = split(Speeds(values=values, names=("a", "b")), history=8)
    known = values[:144, 0][values[:144, 0] > 0]
    mean = pytest.approx(known.mean().item())
    # before the first speed of a part its node's training mean, not the last of the part before
    assert parts.train.speeds[0, 0].item() == mean
    assert parts.validation.speeds[0, 0].item() == mean
    assert parts.test.speeds[0, 0].item() == mean
    assert parts.train.speeds[9:13, 0].tolist() == [10, 10, 10, 13]
    assert parts.test.speeds[9:12, 0].tolist() == [170, 170, 172]
    assert parts.train.known[10:12, 0].tolist() == [0, 0]
    assert torch.equal(parts.train.speeds[:, 1], parts.train.known[:, 1])


def test_later_steps_do_not_change_earlier_parts() -> None:
    values = torch.rand(200, 3, generator=torch.Generator().manual_seed(0)).double() * 50
    values[values < 15] = 0
    changed = values.clone()
    changed[160:] = 5
    before, after = (split(Speeds(values=v, names=("a", "b", "c")), history=4) for v in (values, changed))
    for name in ("train", "validation"):
        assert torch.equal(getattr(before, name).speeds, getattr(after, name).speeds)
    assert (before.mean, before.std) == (after.mean, after.std)
    changed[144:] = 5
    assert torch.equal(before.train.speeds, split(Speeds(values=changed, names=("a", "b", "c")), 4).train.speeds)


def test_filling_by_a_loop() -> None:
    values = torch.rand(50, 4, generator=torch.Generator().manual_seed(1))
    values[values < 0.6] = 0
    means = torch.tensor([1.0, 2.0, 3.0, 4.0])
    expected = values.clone()
    for node in range(4):
        last = means[node]
        for step in range(50):
            last = values[step, node] if values[step, node] > 0 else last
            expected[step, node] = last
    assert torch.equal(filled(values, means), expected)


@pytest.mark.parametrize(
    ("steps", "history", "message"),
    [
        (110, 8, "110 steps are too few: the validation part has 8, and a window takes 8 past steps"),
        (3, 1, "3 steps are too few: the validation part has 0"),
        (5, 4, "5 steps are too few: the training part has 4"),
    ],
)
def test_too_few_steps_are_named(steps: int, history: int, message: str) -> None:
    with pytest.raises(SparsityError, match=message):
        split(counted(steps), history)


def test_the_fewest_steps_that_do() -> None:
    parts = split(counted(113), history=8)
    assert [len(parts.train), len(parts.validation), len(parts.test)] == [73, 1, 15]


@pytest.mark.parametrize(("first", "last", "name"), [(144, 160, "validation"), (160, 200, "test")])
def test_a_part_without_speeds_to_forecast_is_named(first: int, last: int, name: str) -> None:
    values = torch.full((200, 1), 30.0).double()
    # the history of the first window does not count
    values[first + 8 : last] = 0
    with pytest.raises(SparsityError, match=f"the {name} part, steps {first + 1} to {last} of 200, has no known speed"):
        split(Speeds(values=values, names=("bridge",)), history=8)


def test_a_node_without_training_speeds_is_named() -> None:
    values = torch.full((200, 2), 30.0).double()
    values[:144, 1] = 0
    with pytest.raises(SparsityError, match="node 'bridge' has no speed in the 144 steps of the training part"):
        split(Speeds(values=values, names=("market", "bridge")), history=8)
