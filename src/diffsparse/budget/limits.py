"""What a network may cost: one or several limits, and the way there."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from diffsparse.errors import SparsityError, require_number
from diffsparse.measuring import Measurement

Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

COUNTED = ("macs", "params", "bytes")
"""Costs that are counted."""
METRICS = (*COUNTED, "latency")
"""All costs; latency is a share of the whole network's, and 1 where nobody asks for it."""
LATENCY = METRICS.index("latency")


def cost_numbers(measured: Measurement, latency: float = 1.0) -> Numbers:
    """A measured cost as numbers, in the order of `METRICS`."""
    return np.array([*(getattr(measured, name) for name in COUNTED), latency], float)


@dataclass(frozen=True)
class Limits:
    """The largest cost for each metric, infinite where none was asked for."""

    numbers: Numbers
    given: Mapping[str, float] = field(default_factory=dict)
    """What the user asked for."""

    @classmethod
    def asked(cls, given: Mapping[str, float | None], whole: Numbers, samples: int = 1) -> "Limits":
        """From what the user gave: shares of the whole network's cost up to 1, numbers above.

        A number of MACs is for one of the samples that `whole` is for.
        """
        asked = {name: value for name, value in given.items() if value is not None}
        if not asked:
            raise SparsityError(f"a budget needs a cost: give one of {', '.join(f'{name}=' for name in METRICS)}")
        numbers = np.full(len(METRICS), np.inf)
        for name, value in asked.items():
            metric, number = METRICS.index(name), require_number(name, value, above=0)
            counted, each = (samples, " for one sample") if name == "macs" else (1, "")
            if number * counted > whole[metric] and number > 1:
                raise SparsityError(
                    f"{name}={value:g} is more than the whole network costs, {whole[metric] / counted:,.0f}{each}; "
                    "give a share above 0 and up to 1, or a smaller number"
                )
            numbers[metric] = number * whole[metric] if number <= 1 else number * counted
        return cls(numbers, asked)

    @property
    def latency(self) -> float:
        """The largest share of the whole network's latency; infinite if none was asked for."""
        return float(self.numbers[LATENCY])

    @property
    def of_counted(self) -> bool:
        """Whether there is a limit for anything but latency."""
        return bool(np.isfinite(self.numbers[: len(COUNTED)]).any())

    def excess(self, cost: Numbers) -> float:
        """The largest of the costs as a multiple of its limit; all limits hold if this is at most 1."""
        return float((cost / self.numbers).max())

    def missing(self, cost: Numbers, whole: Numbers) -> float:
        """By which share of the whole cost a cost is above its limit; below zero if all limits hold."""
        return float(((cost - self.numbers) / whole).max())

    def loosened(self, share: float, whole: Numbers) -> "Limits":
        """These limits and a share of the whole cost."""
        return Limits(self.numbers + share * whole)

    def at_least(self, others: "Limits") -> "Limits":
        """The larger one of these limits and others, metric by metric."""
        return Limits(np.maximum(self.numbers, others.numbers))

    def on_the_way(self, whole: Numbers, done: float) -> "Limits":
        """The limits for a network that is `done` of the way from the whole cost to these."""
        way = whole - (whole - np.minimum(self.numbers, whole)) * done
        return Limits(np.where(np.isinf(self.numbers), np.inf, way))

    def shares(self, whole: Numbers) -> dict[str, float]:
        """The limits that there are, as shares of the whole cost."""
        pairs = zip(METRICS, self.numbers, whole, strict=True)
        return {name: float(limit / cost) for name, limit, cost in pairs if np.isfinite(limit)}

    def unreachable(self, whole: Numbers, samples: int, smallest: Numbers) -> SparsityError:
        """What to say if the network cannot cost less than `smallest`, for so many samples; to raise."""
        shares, reached = self.shares(whole), Limits(smallest).shares(whole)
        given = self.given or shares
        asked = ", ".join(f"{name}={number:.4g}" for name, number in given.items())
        if any(number > 1 for number in given.values()):
            asked += " (a number above 1 is not a share, but a cost)"
        words = []
        for name in shares:
            # in the unit that the user gave, rounded up
            counted = whole[METRICS.index(name)] / (samples if name == "macs" else 1)
            number = math.ceil(1e4 * reached[name]) / 1e4 if given[name] <= 1 else math.ceil(reached[name] * counted)
            words.append(f"{name}={number:.15g}")
        return SparsityError(
            f"a budget of {asked} cannot be reached: with every gate closed that can be, the rest still costs "
            f"{', '.join(words)}, the smallest budget for this network. Ask for that or more, or put gates into more "
            "layers"
        )
