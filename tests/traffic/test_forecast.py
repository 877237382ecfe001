import math

import pytest
import torch

from diffsparse import SparsityError
from diffsparse.traffic.forecast import (
    forecast_scores,
    mean_absolute_error,
    mean_relative_error,
    root_mean_square_error,
)

PREDICTED = torch.tensor([[12.0, 50.0, 7.0], [40.0, 16.0, 30.0]])
TARGET = torch.tensor([[10.0, 0.0, 8.0], [50.0, 16.0, 0.0]])


def test_hand_worked_errors_leave_missing_targets_out() -> None:
    assert mean_relative_error(PREDICTED, TARGET).item() == pytest.approx((0.2 + 0.125 + 0.2 + 0) / 4)
    assert mean_absolute_error(PREDICTED, TARGET).item() == pytest.approx((2 + 1 + 10 + 0) / 4)
    assert root_mean_square_error(PREDICTED, TARGET).item() == pytest.approx(math.sqrt((4 + 1 + 100 + 0) / 4))


def test_scores_are_the_three_errors_in_percent_and_in_units() -> None:
    scores = forecast_scores(PREDICTED, TARGET)
    assert scores.known == 4
    assert scores.mape == pytest.approx(13.125)
    assert scores.mae == pytest.approx(3.25)
    assert scores.rmse == pytest.approx(math.sqrt(26.25))


def test_a_perfect_forecast_has_no_error() -> None:
    scores = forecast_scores(TARGET, TARGET)
    assert (scores.mape, scores.mae, scores.rmse) == (0, 0, 0)


def test_gradient_is_that_of_the_formula_and_zero_where_the_target_is_missing() -> None:
    predicted = PREDICTED.clone().requires_grad_()
    mean_relative_error(predicted, TARGET).backward()
    sign_over_target = [[1 / 10, 0, -1 / 8], [-1 / 50, 0, 0]]
    assert torch.allclose(predicted.grad, torch.tensor(sign_over_target) / 4)


def test_a_wild_prediction_of_a_missing_target_does_no_harm() -> None:
    predicted = torch.tensor([11.0, torch.inf, torch.nan], requires_grad=True)
    target = torch.tensor([10.0, 0.0, 0.0])
    loss = mean_relative_error(predicted, target)
    loss.backward()
    assert loss.item() == pytest.approx(0.1)
    assert predicted.grad.tolist() == pytest.approx([0.1, 0, 0])


def test_half_precision_is_computed_in_float32() -> None:
    predicted, target = torch.full((300, 300), 80.0).half(), torch.full((300, 300), 60.0).half()
    for error, expected in ((mean_absolute_error, 20), (root_mean_square_error, 20), (mean_relative_error, 1 / 3)):
        assert error(predicted, target).dtype == torch.float32
        assert error(predicted, target).item() == pytest.approx(expected)


def test_nothing_known_is_no_loss_but_cannot_be_scored() -> None:
    nothing = torch.zeros(2, 3)
    predicted = PREDICTED.clone().requires_grad_()
    loss = mean_relative_error(predicted, nothing)
    loss.backward()
    assert loss.item() == 0
    assert predicted.grad.abs().max() == 0
    with pytest.raises(SparsityError, match="every target is 0"):
        forecast_scores(PREDICTED, nothing)


@pytest.mark.parametrize("error", [mean_relative_error, mean_absolute_error, root_mean_square_error, forecast_scores])
def test_wrong_arguments_are_named(error) -> None:
    with pytest.raises(SparsityError, match=r"got \(2, 3\) and \(3,\)"):
        error(PREDICTED, TARGET[0])
    with pytest.raises(SparsityError, match="target must be a floating-point tensor"):
        error(PREDICTED, TARGET.long())
