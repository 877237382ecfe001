"""The comparison that has the last word."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.trial_inputs import random_like
from diffsparse.compaction.verify import TOLERANCE, Trials, default_tolerance, difference, same_draws
from tests.compaction.tiny import X, tiny


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-9), (torch.float32, 1e-4), (torch.bfloat16, 5e-2), (torch.float16, 1e-2)]
)
def test_tolerance_by_dtype(dtype: torch.dtype, limit: float) -> None:
    assert default_tolerance(nn.Linear(2, 2).to(dtype)) == limit == TOLERANCE[dtype]


def test_the_coarsest_dtype_decides() -> None:
    assert default_tolerance(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16())) == 5e-2
    assert default_tolerance(nn.ReLU()) == 1e-4


def test_difference_is_relative_to_the_largest_output() -> None:
    a = torch.tensor([10.0, 1.0])
    assert difference(a, a) == 0
    assert difference(a, torch.tensor([10.0, 2.0])) == pytest.approx(0.1)
    assert difference(torch.zeros(2), torch.tensor([0.0, 0.5])) == 0.5


def test_each_tensor_counts_by_its_own_scale() -> None:
    assert difference((torch.ones(1), 1e-6 * torch.ones(1)), (torch.ones(1), torch.zeros(1))) == pytest.approx(1.0)


def test_not_a_number_is_a_difference() -> None:
    assert difference(torch.ones(2), torch.tensor([1.0, float("nan")])) == float("inf")


def test_whole_numbers_must_be_equal() -> None:
    assert difference(torch.tensor([1, 2]), torch.tensor([1, 2])) == 0
    assert difference(torch.tensor([1, 2]), torch.tensor([1, 3])) == 1
    assert difference(torch.zeros(0), torch.zeros(0)) == 0


def test_tensors_are_compared_inside_of_structures() -> None:
    @dataclass
    class Output:
        logits: Tensor

    assert difference({"a": [Output(torch.ones(1))]}, {"a": [Output(torch.zeros(1))]}) == 1


@pytest.mark.parametrize(
    ("other", "message"), [((torch.ones(2), torch.ones(2)), "2 tensors"), (torch.ones(3), r"\(3,\)")]
)
def test_another_structure_or_shape_is_named(other: object, message: str) -> None:
    with pytest.raises(ds.SparsityError, match=message):
        difference(torch.ones(2), other)


def test_random_inputs_have_the_form_of_the_example() -> None:
    index = torch.tensor([1, 2])
    made = random_like(({"x": [X.bfloat16()]}, index, 3), torch.Generator().manual_seed(0))
    assert made[0]["x"][0].dtype == torch.bfloat16
    assert made[0]["x"][0].shape == X.shape
    assert not torch.equal(made[0]["x"][0], X.bfloat16())
    assert made[1] is index
    assert made[2] == 3


def asked(model: nn.Module, x: Tensor = X) -> Trials:
    """Trials whose answers come from `model`."""
    with same_draws():
        answer = model(x.clone())
    trials = Trials((x,), {}, answer, default_tolerance(model))
    trials.note_answers(model)
    return trials


def test_a_wrong_weight_is_seen() -> None:
    model = tiny()
    wrong = copy.deepcopy(model)
    wrong.head.weight.data[0, 0] += 1e-6
    trials = asked(model)
    assert trials.largest_difference(copy.deepcopy(model)) == 0
    assert 1e-9 < trials.largest_difference(wrong) < 1e-5
    with pytest.raises(ds.SparsityError, match="outputs differ by"):
        trials.check(wrong)


class OnZeros(nn.Module):
    """Equal to its twin on the example, not on others."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x)


def test_a_model_that_is_right_on_the_example_only_is_seen() -> None:
    zeros = torch.zeros(1, 2, 4, 4)
    trials = asked(OnZeros(lambda x: x), zeros)
    assert trials.largest_difference(OnZeros(lambda x: 2 * x)) > 0.1


def test_a_model_that_is_right_for_one_size_only_is_seen() -> None:
    trials = asked(OnZeros(lambda x: x))
    fixed = OnZeros(lambda x: F.interpolate(x, (8, 8)) if x.shape[-1] == 8 else 2 * x)
    assert trials.largest_difference(fixed) > 0.1


def test_a_model_that_is_right_for_one_batch_size_only_is_seen() -> None:
    trials = asked(OnZeros(lambda x: x))
    wrong = OnZeros(lambda x: x if len(x) == len(X) else 2 * x)
    assert trials.largest_difference(wrong) > 0.1


def refuses(unless: Callable[[Tensor], bool]) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        if not unless(x):
            raise ValueError(tuple(x.shape))
        return x

    return change


@pytest.mark.parametrize(
    "takes",
    [
        lambda x: x.shape[-1] >= 8,
        lambda x: x.shape[-1] == 8,
        lambda x: len(x) == len(X),
        lambda x: x.shape == X.shape,
        lambda x: torch.equal(x[: len(X), :, :8, :8], X),
        lambda x: torch.equal(x[: len(X)], X),
    ],
    ids=["large", "one size", "one batch size", "one shape", "given numbers", "given numbers of one size"],
)
def test_what_the_original_refuses_does_not_count_and_something_else_is_tried(takes: Callable[[Tensor], bool]) -> None:
    model = OnZeros(refuses(takes))
    trials = asked(model)
    assert trials.largest_difference(model) == 0
    other = OnZeros(lambda x: x if torch.equal(x, X) else 2 * x)
    assert trials.largest_difference(other) == 1


def test_an_answer_without_numbers_says_little_and_something_else_is_tried() -> None:
    positive = X.abs()
    trials = asked(OnZeros(lambda x: x.log() if bool((x > 0).all()) else x * float("nan")), positive)
    assert trials.largest_difference(OnZeros(lambda x: x.log() * (1 + (len(x) != len(X))))) > 0.1


def test_a_size_that_the_original_does_not_take_does_not_count() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 2)).double()
    assert asked(model).largest_difference(model) == 0


def test_a_model_that_writes_to_its_input_is_compared_fairly() -> None:
    kept = X.clone()
    model = OnZeros(lambda x: x.add_(1))
    assert asked(model).largest_difference(model) == 0
    assert torch.equal(X, kept)


def test_random_numbers_of_the_model_are_the_same_each_time() -> None:
    model = OnZeros(lambda x: x + torch.rand_like(x))
    state = torch.random.get_rng_state()
    assert asked(model).largest_difference(model) == 0
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_given_tolerance_replaces_the_default() -> None:
    model = tiny(dead=[0], fixed=[1]).float()
    assert ds.compact(model, X.float(), tolerance=1e-3).max_difference < 1e-3
    with pytest.raises(ds.SparsityError, match="tolerance must be a finite number of at least 0, got -1"):
        ds.compact(model, X.float(), tolerance=-1)
