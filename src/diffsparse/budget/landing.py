"""The last death of a landing may save much more than needed: there may be room for entries that are dead."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from diffsparse.budget.entries import GateEntries
from diffsparse.budget.limits import Limits, Mask, Numbers
from diffsparse.budget.search import least

NEAR, TRIES = 0.995, 40
"""A landing this close to the limits is not improved, and any other one by no more than so many tries."""
ROUNDING = 1e-9
"""Costs that differ by less, as shares of their limits, are the same."""

Cost: TypeAlias = Callable[[Mask], Numbers]


def refilled(alive: Mask, dies_at: Numbers, entries: GateEntries, limits: Limits, costs: tuple[Cost, Cost]) -> Mask:
    """The live entries, and the strongest dead ones that the limits have room for.

    Args:
        alive: within the limits.
        dies_at: at which shift each entry dies.
        entries: of the gates.
        limits: the final ones.
        costs: by the formula, which is much faster and serves where it is exact, as two exact counts show; and exact.
    """
    formula, exact = costs
    if is_exact(alive, limits, costs):
        filled = _filled(alive, dies_at, entries, limits, formula)
        if is_exact(filled, limits, costs):
            return filled
    return _filled(alive, dies_at, entries, limits, exact)


def is_exact(alive: Mask, limits: Limits, costs: tuple[Cost, Cost]) -> bool:
    """Whether both costs are the same."""
    first, second = (limits.excess(cost(alive)) for cost in costs)
    return abs(first - second) < ROUNDING


def _filled(alive: Mask, dies_at: Numbers, entries: GateEntries, limits: Limits, cost: Cost) -> Mask:
    now, tries = alive.copy(), 0
    waiting = sorted(np.flatnonzero(~alive & (dies_at > -np.inf)).tolist(), key=lambda dead: -dies_at[dead])

    def too_many(count: int) -> bool:
        nonlocal tries
        tries += 1
        more = now.copy()
        more[waiting[: count + 1]] = True
        return tries > TRIES or limits.excess(cost(more)) > 1

    while waiting and tries <= TRIES and limits.excess(cost(now)) < NEAR:
        count = least(too_many, len(waiting), guess=0)
        now[waiting[:count]] = True
        # a threshold above an entry is above all weaker ones of its group
        full = entries.group[waiting[count]] if count < len(waiting) else None
        waiting = [entry for entry in waiting[count:] if entries.group[entry] != full]
    return now
