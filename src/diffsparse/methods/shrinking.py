"""A proximal step that ends when there are as many zeros as were asked for."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from diffsparse.errors import require_number
from diffsparse.penalties import ProximalStep
from diffsparse.penalties.norms import Norm

HALVINGS = 24
"""Of the interval in which the last lambda is looked for."""


class Shrinking(ProximalStep):
    """A proximal step as a regulariser.

    Zeros of a proximal step come back as soon as lambda is gone. With a target, the step that reaches it is the last:
    it is taken with the smallest lambda that will do, and from then on what is zero stays zero and the rest is free.

    Example:
        >>> from diffsparse import L1
        >>> w = torch.nn.Parameter(torch.tensor([1.0, 0.1, 0.2, 0.3]))
        >>> optimizer = torch.optim.SGD([w], lr=0.1)
        >>> shrinking = Shrinking(optimizer, [w], L1(), strength=5.0, target=0.5)
        >>> w.grad = torch.zeros(4)
        >>> optimizer.step()
        >>> w.data
        tensor([0.8000, 0.0000, 0.0000, 0.1000])
        >>> w.grad = torch.full((4,), 0.5)
        >>> optimizer.step()
        >>> w.data
        tensor([0.7500, 0.0000, 0.0000, 0.0500])
    """

    def __init__(
        self, optimizer: Optimizer, parameters: Iterable[Tensor], norm: Norm, strength: float, target: float | None
    ) -> None:
        super().__init__(optimizer, parameters, norm, strength)
        self._target = target if target is None else require_number("target", target, low=0, high=1)
        self._zero: list[Tensor] = []

    def __call__(self) -> None:
        """Nothing to add to the loss: it acts in the optimiser."""

    @property
    def settled(self) -> bool:
        """Whether what is zero stays zero."""
        return bool(self._zero)

    def settle(self) -> None:
        """Let what is zero stay zero from now on, whatever its gradient says."""
        self._zero = [parameter.detach() == 0 for parameter in self.parameters]

    @torch.no_grad()
    def _apply(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self.settled:
            for parameter, zero in zip(self.parameters, self._zero, strict=True):
                parameter.masked_fill_(zero, 0.0)
        elif self._target is None:
            super()._apply(optimizer, _args, _kwargs)
        else:
            before = [parameter.clone() for parameter in self.parameters]
            super()._apply(optimizer, _args, _kwargs)
            if self._enough():
                self._last_step(optimizer, before)

    def _enough(self) -> bool:
        zero = torch.stack([(parameter == 0).sum() for parameter in self.parameters]).sum()
        assert self._target is not None
        return float(zero) >= self._target * sum(parameter.numel() for parameter in self.parameters)

    def _last_step(self, optimizer: Optimizer, before: list[Tensor]) -> None:
        """Take the step from `before` again, with the smallest lambda that reaches the target."""
        low, high = 0.0, self.strength
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            self._step_with(middle, optimizer, before)
            low, high = (low, middle) if self._enough() else (middle, high)
        self._step_with(high, optimizer, before)
        self.settle()

    def _step_with(self, strength: float, optimizer: Optimizer, before: list[Tensor]) -> None:
        for parameter, old in zip(self.parameters, before, strict=True):
            parameter.copy_(old)
        self.strength = strength
        super()._apply(optimizer, (), {})
