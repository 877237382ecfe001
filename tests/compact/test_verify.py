"""The comparison that has the last word."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compact.verify import TOLERANCE, Trials, default_tolerance, difference, random_like
from tests.compact.tiny import X, tiny


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


def test_a_wrong_weight_is_seen() -> None:
    model = tiny()
    wrong = copy.deepcopy(model)
    wrong.head.weight.data[0, 0] += 1e-6
    trials = Trials(model, (X,), {})
    assert trials.largest_difference(copy.deepcopy(model)) == 0
    assert 1e-9 < trials.largest_difference(wrong) < 1e-5


class OnZeros(nn.Module):
    """Equal to its twin on the example, not on others."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x)


def test_a_model_that_is_right_on_the_example_only_is_seen() -> None:
    zeros = torch.zeros(1, 2, 4, 4)
    trials = Trials(OnZeros(lambda x: x), (zeros,), {})
    assert trials.largest_difference(OnZeros(lambda x: 2 * x)) > 0.1


def test_a_model_that_is_right_for_one_size_only_is_seen() -> None:
    trials = Trials(OnZeros(lambda x: x), (X,), {})
    fixed = OnZeros(lambda x: F.interpolate(x, (8, 8)) if x.shape[-1] == 8 else 2 * x)
    assert trials.largest_difference(fixed) > 0.1
    assert trials.largest_difference(fixed, any_size=False) == 0


def test_a_size_that_the_original_does_not_take_does_not_count() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 2)).double()
    assert Trials(model, (X,), {}).largest_difference(model) == 0


def test_a_model_that_writes_to_its_input_is_compared_fairly() -> None:
    kept = X.clone()
    model = OnZeros(lambda x: x.add_(1))
    assert Trials(model, (X,), {}).largest_difference(model) == 0
    assert torch.equal(X, kept)


def test_a_given_tolerance_replaces_the_default() -> None:
    model = tiny(dead=[0], fixed=[1]).float()
    assert ds.compact(model, X.float(), tolerance=1e-3).max_difference < 1e-3
    with pytest.raises(ds.SparsityError, match="tolerance must be a finite number of at least 0, got -1"):
        ds.compact(model, X.float(), tolerance=-1)
