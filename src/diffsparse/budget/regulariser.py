"""A budget in the form of a regulariser."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from diffsparse.budget.budget import Budget
from diffsparse.penalties import Regulariser


class BudgetPressure(Regulariser):
    """A budget as loops want it that know regularisers: this package's own, and those of other frameworks.

    Args:
        budget: what steers the model.
        optimizers: the optimiser of the model, or all of them.

    Example:
        >>> import torch, diffsparse as ds
        >>> from torch import nn
        >>> model = ds.sparsify(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), start=1.0)
        >>> budget = Budget(model, torch.randn(2, 4), macs=0.5, steps=4)
        >>> pressure = BudgetPressure(budget, torch.optim.SGD(model.parameters(), lr=0.1))
        >>> pressure().item() > 0, pressure.step_done(), pressure.step_done(), pressure()
        (True, False, True, None)
    """

    strength = 0.0

    def __init__(self, budget: Budget, *optimizers: Optimizer | Iterable[Optimizer]) -> None:
        self.budget, self.optimizers = budget, optimizers

    @property
    def reached(self) -> bool:  # type: ignore[override]
        """Whether the model is small."""
        return self.budget.finished

    def __call__(self) -> Tensor | None:
        return None if self.budget.finished else self.budget.penalty()

    def step_done(self) -> bool:
        return self.budget.step(*self.optimizers)

    def let_follow(self, average: Any) -> None:
        average.follow(self.budget.small)

    def before_restoring(self, state: dict[str, Any]) -> bool:
        self.budget.load_state_dict(state, *self.optimizers)
        return True

    def state_dict(self) -> dict[str, Any]:
        return self.budget.state_dict()
