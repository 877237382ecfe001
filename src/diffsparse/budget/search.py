"""How many entries have to die: a search that needs few counts of the cost."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from diffsparse.budget.limits import Mask, Numbers

Order: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

BESIDE = 1e-3
"""How far a threshold is moved beyond the last entry where there is none on the other side."""


def fewest_deaths(dies_at: Numbers, fits: Callable[[Mask], bool], guess: int | None = None) -> tuple[Mask, float]:
    """The entries that live if as few die as `fits` needs, the first to die first, and a common shift that does it.

    Args:
        dies_at: at which shift each entry dies; infinite for those that never do.
        fits: whether it is enough if just these live.
        guess: how many may die, about.
    """
    order = np.argsort(dies_at, kind="stable")
    dead = least(lambda count: fits(_without(order, count)), int((dies_at < np.inf).sum()), guess)
    return _without(order, dead), _between(dies_at[order], dead)


def _without(order: Order, dead: int) -> Mask:
    alive = np.ones(len(order), bool)
    alive[order[:dead]] = False
    return alive


def _between(sorted_shifts: Numbers, dead: int) -> float:
    """A shift at which the first `dead` entries die and the others live."""
    below = sorted_shifts[dead - 1] if dead else -np.inf
    above = sorted_shifts[dead] if dead < len(sorted_shifts) else np.inf
    if np.isfinite(below) and np.isfinite(above):
        return float(below + above) / 2
    if np.isfinite(below):
        return float(below) + BESIDE
    return min(float(above) - BESIDE, 0.0) if np.isfinite(above) else 0.0


def least(holds: Callable[[int], bool], most: int, guess: int | None = None) -> int:
    """The least number up to `most` for which `holds` is true, if it is true from there on; `most` if it never is.

    A good guess saves calls.

    Example:
        >>> least(lambda n: n >= 7, 100, guess=9)
        7
    """
    low, high = 0, most
    if guess is not None:
        middle, step = min(guess, most), 1
        if holds(middle):
            high = middle
            while middle > 0 and holds(max(middle - step, 0)):
                middle = high = max(middle - step, 0)
                step *= 2
            low = max(high - step, 0)
        else:
            while middle < most and not holds(min(middle + step, most)):
                middle, step = min(middle + step, most), 2 * step
            low, high = min(middle + 1, most), min(middle + step, most)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
