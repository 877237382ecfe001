"""What a network may cost, for methods that search for a network within it."""

from typing import Any

import numpy as np

from diffsparse.budget.limits import METRICS, Limits, cost_numbers
from diffsparse.measuring import Measurement

WORDS = {"macs": "MACs", "params": "parameters", "bytes": "bytes", "latency": "latency"}


def asked_costs(options: Any) -> dict[str, float]:
    """The costs among `options`, by metric."""
    found = {name: getattr(options, name, None) for name in METRICS}
    return {name: cost for name, cost in found.items() if cost is not None}


class CostLimits:
    """The costs that were asked for, against which networks are held.

    Args:
        asked: by metric, shares of the whole network up to 1, numbers above.
        whole: what the whole network costs.
    """

    def __init__(self, asked: dict[str, float], whole: Measurement) -> None:
        self.asked, self._whole = asked, cost_numbers(whole)
        self._limits = Limits.asked(asked, self._whole)

    def excess(self, cost: Measurement) -> float:
        """The largest cost as a multiple of its limit; at most 1 if all hold."""
        return self._limits.excess(cost_numbers(cost))

    def words(self) -> str:
        """What was asked for, as options."""
        return ", ".join(f"{name}={cost:g}" for name, cost in self.asked.items())

    def shares(self, cost: Measurement) -> str:
        """The costs that there are limits for, in words."""
        shares = dict(zip(METRICS, cost_numbers(cost) / np.maximum(self._whole, 1), strict=True))
        return " and ".join(f"{shares[name]:.1%} of the {WORDS[name]}" for name in self.asked)
