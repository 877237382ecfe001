"""Errors of a forecast, and the paper's loss as an objective; a target of 0 is missing and never counts."""

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


@dataclass(frozen=True, kw_only=True)
class ForecastScores:
    """Errors over the known targets: `mape` in percent, `mae` and `rmse` in the units of the targets."""

    mape: float
    mae: float
    rmse: float
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


class Forecast:
    """The objective of forecasting: minimises the mean relative error, and reports what `forecast_scores` does."""

    headline = "mape"
    higher_is_better = False
    sizes = 4
    shows_macs = False

    def loss(self, outputs: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return mean_relative_error(outputs, targets)

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Summed relative, absolute and squared errors and the number of known targets, in float64."""
        error, known = _errors(outputs.double(), targets.double())
        absolute = error[known].abs()
        relative = absolute / targets[known].double()
        return torch.stack([relative.sum(), absolute.sum(), absolute.square().sum(), known.sum().double()])

    def figures(self, sums: Tensor) -> dict[str, float]:
        relative, absolute, squared, known = sums.tolist()
        known = max(known, 1.0)
        errors = {"mape": 100 * relative / known, "mae": absolute / known, "rmse": (squared / known) ** 0.5}
        return {"loss": relative / known} | errors


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
