"""Proximal gradient descent: the operator of a norm applied after each step of any optimiser."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from diffsparse.errors import SparsityError, require_number
from diffsparse.penalties.norms import Norm


class ProximalStep:
    r"""After each `optimizer.step()`: :math:`w \leftarrow \mathrm{prox}_{\eta\lambda R}(w)`, with the current
    learning rate :math:`\eta` of the parameter's group.

    Args:
        optimizer: any optimiser; it is hooked, its class and state stay as they are.
        parameters: the parameters to shrink, each of shape (..., n) with groups along its last dimension. Those with
            `requires_grad=False` are left alone while they have it.
        norm: `L1()`, `GroupL21(...)` or `ExclusiveL12()`; `Lp` has no closed form.
        strength: lambda.

    Example:
        >>> from diffsparse import L1
        >>> w = torch.nn.Parameter(torch.tensor([1.0, 0.01]))
        >>> optimizer = torch.optim.SGD([w], lr=0.1)
        >>> hook = ProximalStep(optimizer, [w], L1(), strength=0.5)
        >>> w.grad = torch.zeros(2)
        >>> optimizer.step()
        >>> w.data
        tensor([0.9500, 0.0000])
        >>> hook.remove()
    """

    def __init__(self, optimizer: Optimizer, parameters: Iterable[Tensor], norm: Norm, strength: float) -> None:
        if not isinstance(norm, Norm):
            raise SparsityError(f"norm must be L1(), GroupL21(...) or ExclusiveL12(), got {norm!r}")
        self.norm, self.strength = norm, require_number("strength", strength, low=0)
        self.parameters = list({id(parameter): parameter for parameter in parameters}.values())
        if not self.parameters:
            raise SparsityError("no parameters were given to shrink")
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for position, parameter in enumerate(self.parameters):
            if id(parameter) not in known:
                raise SparsityError(
                    f"parameter {position} of shape {tuple(parameter.shape)} is not in the optimiser, "
                    "so it has no learning rate"
                )
            norm.proximal(parameter.detach(), 0.0)
        self._handle = optimizer.register_step_post_hook(self._apply)

    @torch.no_grad()
    def _apply(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        rate = {id(p): float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
        for parameter in (p for p in self.parameters if p.requires_grad):
            parameter.copy_(self.norm.proximal(parameter, rate[id(parameter)] * self.strength))

    def remove(self) -> None:
        """Unhook from the optimiser."""
        self._handle.remove()
