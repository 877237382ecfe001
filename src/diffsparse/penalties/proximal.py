"""Proximal gradient descent: the operator of a norm applied after each step of any optimiser."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from diffsparse.errors import SparsityError, require_number
from diffsparse.penalties.norms import Norm
from diffsparse.penalties.penalty import Regulariser

HALVINGS = 24
"""Bisection steps in the search for the last lambda."""


class ProximalStep(Regulariser):
    r"""After each `optimizer.step()`: :math:`w \leftarrow \mathrm{prox}_{\eta\lambda R}(w)`, with the current
    learning rate :math:`\eta` of the parameter's group.

    Args:
        optimizer: any optimiser; it is hooked, its class and state stay as they are.
        parameters: the parameters to shrink, each of shape (..., n) with groups along its last dimension. Those with
            `requires_grad=False` are left alone while they have it.
        norm: `L1()`, `GroupL21(...)` or `ExclusiveL12()`; `Lp` has no closed form.
        strength: lambda.
        target: stop at this share of zeros; None never stops. Zeros of a proximal step come back once lambda is gone.
            The step that reaches the target therefore takes the smallest lambda that will do, and from then on what is
            zero stays zero and the rest is free.
        after_step: called after each step.

    Example:
        >>> from diffsparse import L1
        >>> w = torch.nn.Parameter(torch.tensor([1.0, 0.1, 0.2, 0.3]))
        >>> optimizer = torch.optim.SGD([w], lr=0.1)
        >>> hook = ProximalStep(optimizer, [w], L1(), strength=5.0, target=0.5)
        >>> w.grad = torch.zeros(4)
        >>> optimizer.step()
        >>> w.data, hook.settled
        (tensor([0.8000, 0.0000, 0.0000, 0.1000]), True)
        >>> hook.remove()
    """

    keeps_zeros: ClassVar[bool] = True

    def __init__(
        self,
        optimizer: Optimizer,
        parameters: Iterable[Tensor],
        norm: Norm,
        strength: float,
        target: float | None = None,
        *,
        after_step: Callable[[], None] | None = None,
    ) -> None:
        if not isinstance(norm, Norm):
            raise SparsityError(f"norm must be L1(), GroupL21(...) or ExclusiveL12(), got {norm!r}")
        self.norm, self.strength = norm, require_number("strength", strength, low=0)
        self.target = target if target is None else require_number("target", target, low=0, high=1)
        self.parameters = list({id(parameter): parameter for parameter in parameters}.values())
        if not self.parameters:
            raise SparsityError("no parameters were given to shrink")
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for position, parameter in enumerate(self.parameters):
            if id(parameter) not in known:
                name = f"parameter {position} of shape {tuple(parameter.shape)}"
                raise SparsityError(f"{name} is not in the optimiser, so it has no learning rate")
            norm.proximal(parameter.detach(), 0.0)
        self.after_step = after_step
        self._zero: list[Tensor] = []
        self._handle = optimizer.register_step_post_hook(self._after_step)

    def settle(self) -> None:
        self._zero = [parameter.detach() == 0 for parameter in self.parameters]
        self.settled = True

    def state_dict(self) -> dict[str, Any]:
        return {"settled": self.settled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["settled"]:
            self.settle()

    def remove(self) -> None:
        """Unhook from the optimiser."""
        self._handle.remove()

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self.settled:
            for parameter, zero in zip(self.parameters, self._zero, strict=True):
                parameter.masked_fill_(zero, 0.0)
        elif self.target is None:
            self._shrink(optimizer, self.parameters)
        else:
            before = [parameter.clone() for parameter in self.parameters]
            self._shrink(optimizer, before)
            if self._enough():
                self._last_step(optimizer, before)
        if self.after_step is not None:
            self.after_step()

    def _shrink(self, optimizer: Optimizer, before: list[Tensor]) -> None:
        rate = {id(p): float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
        for parameter, old in zip(self.parameters, before, strict=True):
            if parameter.requires_grad:
                parameter.copy_(self.norm.proximal(old, rate[id(parameter)] * self.strength))

    def _enough(self) -> bool:
        zero = torch.stack([(parameter == 0).sum() for parameter in self.parameters]).sum()
        assert self.target is not None
        return float(zero) >= self.target * sum(parameter.numel() for parameter in self.parameters)

    def _last_step(self, optimizer: Optimizer, before: list[Tensor]) -> None:
        """Take the step from `before` again, with the smallest lambda that reaches the target."""
        low, high = 0.0, self.strength
        for _ in range(HALVINGS):
            self.strength = (low + high) / 2
            self._shrink(optimizer, before)
            low, high = (low, self.strength) if self._enough() else (self.strength, high)
        self.strength = high
        self._shrink(optimizer, before)
        self.settle()
