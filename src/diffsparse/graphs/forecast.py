"""Errors of a forecast; a target of 0 is a missing observation and is ignored."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diffsparse.errors import SparsityError, require_floats


def mean_relative_error(predicted: Tensor, target: Tensor) -> Tensor:
    r"""The mean of :math:`|\tilde{y} - y| / y` over the known targets: the paper's loss, differentiable.

    Edges: 0 if no target is known; half precision is computed in float32.

    Example:
        >>> mean_relative_error(torch.tensor([[12.0, 30.0]]), torch.tensor([[10.0, 0.0]]))
        tensor(0.2000)
    """
    error, known = _errors(predicted, target)
    return _mean(error.abs() / torch.where(known, target, 1).to(error.dtype), known)


def mean_absolute_error(predicted: Tensor, target: Tensor) -> Tensor:
    """The mean distance from the known targets, in their units; 0 if none is known."""
    error, known = _errors(predicted, target)
    return _mean(error.abs(), known)


def root_mean_square_error(predicted: Tensor, target: Tensor) -> Tensor:
    """The root of the mean square distance from the known targets, in their units; 0 if none is known."""
    error, known = _errors(predicted, target)
    return _mean(error.square(), known).sqrt()


def error_sums(predicted: Tensor, target: Tensor) -> Tensor:
    """The sums of relative, absolute and squared errors over the known targets, and their number, in float64.

    Sums of several batches, or of several processes, add up to those of the whole forecast.

    Example:
        >>> error_sums(torch.tensor([12.0, 16.0, 30.0]), torch.tensor([10.0, 20.0, 0.0])).tolist()
        [0.4, 6.0, 20.0, 2.0]
    """
    error, known = _errors(predicted.double(), target.double())
    absolute = error[known].abs()
    relative = absolute / target[known].double()
    return torch.stack([relative.sum(), absolute.sum(), absolute.square().sum(), known.sum().double()])


@dataclass(frozen=True, kw_only=True)
class ForecastScores:
    """Errors of one forecast over the known targets."""

    mape: float
    """Mean relative error in percent."""
    mae: float
    """Mean absolute error, in the units of the targets."""
    rmse: float
    """Root of the mean square error, in the units of the targets."""
    known: int
    """The number of known targets."""


def forecast_scores(predicted: Tensor, target: Tensor) -> ForecastScores:
    """The three errors of a whole forecast, in float64; raises if no target is known.

    Example:
        >>> forecast_scores(torch.tensor([12.0, 16.0, 30.0]), torch.tensor([10.0, 20.0, 0.0]))
        ForecastScores(mape=20.0, mae=3.0, rmse=3.1622776601683795, known=2)
    """
    _errors(predicted, target)
    known = int(torch.count_nonzero(target))
    if known == 0:
        raise SparsityError("the forecast cannot be scored: every target is 0, which means missing")
    pair = predicted.detach().double(), target.detach().double()
    return ForecastScores(
        mape=100 * mean_relative_error(*pair).item(),
        mae=mean_absolute_error(*pair).item(),
        rmse=root_mean_square_error(*pair).item(),
        known=known,
    )


def _errors(predicted: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Differences in float32 or better, and where the target is known."""
    require_floats("predicted", predicted)
    require_floats("target", target)
    if predicted.shape != target.shape:
        shapes = f"{tuple(predicted.shape)} and {tuple(target.shape)}"
        raise SparsityError(f"predicted and target must have the same shape, got {shapes}")
    at_least_float32 = torch.promote_types(torch.promote_types(predicted.dtype, target.dtype), torch.float32)
    return predicted.to(at_least_float32) - target.to(at_least_float32), target != 0


def _mean(values: Tensor, known: Tensor) -> Tensor:
    # where, not a product: an infinite prediction at a missing target must not give NaN
    return torch.where(known, values, 0).sum() / known.sum().clamp(min=1)
