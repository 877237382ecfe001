"""How hard each group of gates is pressed: by what an entry costs."""

import numpy as np

from diffsparse.budget.cost_model import CostModel
from diffsparse.budget.entries import GateEntries
from diffsparse.budget.limits import Limits, Mask, Numbers

FLOOR = 0.05
"""Least weight of a group, as a share of the mean: what costs next to nothing is hardly pushed."""


def group_weights(entries: GateEntries, costs: CostModel, limits: Limits, alive: Mask, idle: Mask) -> Numbers:
    """What one more entry of each group costs now, for the limit that is hardest to reach; the mean is 1.

    A group of which no entry matters, one of the `idle`, has next to no weight: nothing could tell which of them should
    die.
    """
    metric = int(np.argmax(costs.cost(alive) / limits.numbers))
    marginal = costs.marginal(alive, metric)
    weights = np.bincount(entries.group, weights=marginal) / entries.sizes / (marginal.mean() or 1.0)
    return np.asarray(np.where(idle, FLOOR, np.maximum(weights, FLOOR)))
