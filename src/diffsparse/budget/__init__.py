"""A cost to reach: gates are steered so that the network costs what was asked for, then it becomes small in place."""

from diffsparse.budget.budget import Budget
from diffsparse.budget.look import Look

__all__ = ["Budget", "Look"]
