"""Proximal gradient descent on the scales of batch norms."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from diffsparse.errors import require_number
from diffsparse.methods.method import Method, Regulariser, batch_norms, require_scales
from diffsparse.methods.shrinking import Shrinking
from diffsparse.penalties import L1
from diffsparse.penalties.norms import Norm


@dataclass(frozen=True, kw_only=True)
class Proximal(Method):
    """After each step of the optimiser, the operator of a norm shrinks the scales of each batch norm.

    Scales become exactly zero. The shift of such a channel is set to zero with it, for as long as its scale is: alone
    it would be a constant, which zero padding makes uneven at the border, so that the next convolution would need it.

    Groups of l2,1 are those of the gates' penalty: consecutive channels of a layer, the last group smaller where the
    size does not divide the width. In l1,2 all channels of a layer compete.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8))
        >>> method = Proximal(strength=20.0)
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> regulariser = method.regulariser(net, optimizer)
        >>> net(torch.randn(4, 3)).sum().backward()
        >>> optimizer.step()
        >>> print(method.zeros(net))
        8/8 (100.0%)
    """

    strength: float
    """Lambda of the operator; it acts times the learning rate."""
    norm: Norm = field(default_factory=L1)
    """`L1()`, `GroupL21(...)` or `ExclusiveL12()`."""
    target: float | None = None
    """Share of zero scales at which shrinking ends and zeros stay."""

    def __post_init__(self) -> None:
        require_number("strength", self.strength, low=0)

    def regulariser(self, model: nn.Module, optimizer: Optimizer) -> Regulariser:
        require_scales("a proximal step", model)
        return ScaleShrinking(optimizer, batch_norms(model), self.norm, self.strength, self.target)


class ScaleShrinking(Shrinking):
    """The proximal step on scales, and shifts of dead channels set to zero behind it."""

    def __init__(
        self, optimizer: Optimizer, norms: Sequence[_BatchNorm], norm: Norm, strength: float, target: float | None
    ) -> None:
        super().__init__(optimizer, [norm.weight for norm in norms], norm, strength, target)
        self._norms = list(norms)
        # hooks run in the order they are registered in
        self._silencer = optimizer.register_step_post_hook(self._silence)

    @torch.no_grad()
    def _silence(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        for norm in self._norms:
            if isinstance(norm.bias, nn.Parameter) and norm.bias.requires_grad:
                norm.bias.masked_fill_(norm.weight == 0, 0.0)

    def remove(self) -> None:
        """Unhook from the optimiser."""
        super().remove()
        self._silencer.remove()
