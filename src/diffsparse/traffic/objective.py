"""Forecasting as an objective: relative error where the target is known."""

from torch import Tensor

from diffsparse.graphs.forecast import error_sums, mean_relative_error


class Forecast:
    """The paper's mean relative error, and beside it the errors in percent and in the units of the data.

    A target of 0 is a missing observation and never counts.
    """

    headline = "mape"
    higher_is_better = False
    sizes = 4
    shows_macs = False

    def loss(self, outputs: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean relative error of a batch."""
        return mean_relative_error(outputs, targets)

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Summed relative, absolute and squared errors, known targets."""
        return error_sums(outputs, targets)

    def figures(self, sums: Tensor) -> dict[str, float]:
        """Mean relative error, the same in percent, mean absolute and root mean square error."""
        relative, absolute, squared, known = sums.tolist()
        known = max(known, 1.0)
        return {
            "loss": relative / known,
            "mape": 100 * relative / known,
            "mae": absolute / known,
            "rmse": (squared / known) ** 0.5,
        }
