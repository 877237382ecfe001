"""Proximal gradient descent on the scales of batch norms."""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.optim import Optimizer

from diffsparse.errors import require_number
from diffsparse.methods.method import STEERING, Method, check_auto, register_method
from diffsparse.methods.scales import batch_norms, require_scales
from diffsparse.methods.settings import Sparsifying
from diffsparse.penalties import L1, NORMS, Norm, ProximalStep, Regulariser
from diffsparse.penalties.strength import Pace


@dataclass(frozen=True, kw_only=True)
class Proximal(Method):
    """After each step of the optimiser, the operator of a norm shrinks the scales of each batch norm.

    Scales become exactly zero. While a scale is zero, so is the shift of its channel: alone it would be a constant,
    which zero padding makes uneven at the border, so the next convolution would need it.

    Groups of l2,1 are consecutive channels of a layer, as for gates; the last one may be smaller. In l1,2 all channels
    of a layer compete.

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
    norm: Norm = field(default_factory=L1)
    """`L1()`, `GroupL21(...)` or `ExclusiveL12()`."""
    target: float | None = None
    """Share of zero scales at which shrinking ends and zeros stay."""

    options = STEERING | {"group_size", "target"}

    def __post_init__(self) -> None:
        require_number("strength", self.strength, low=0)

    @classmethod
    def from_settings(cls, settings: Sparsifying) -> Method:
        return cls(strength=settings.number, norm=named_norm(settings), target=settings.target)

    @classmethod
    def check(cls, settings: Sparsifying) -> None:
        super().check(settings)
        check_auto(settings, settings.method.removeprefix("proximal-"))

    @classmethod
    def own_pace(cls, pace: Pace) -> Pace:
        """A proximal step moves a scale by lambda times the learning rate, whatever the optimiser."""
        return Pace(total_rate=pace.total_rate, direct=True)

    def regulariser(self, model: nn.Module, optimizer: Optimizer) -> Regulariser:
        scales = require_scales("a proximal step", model)

        @torch.no_grad()
        def silence() -> None:
            for norm in batch_norms(model):
                if isinstance(norm.bias, nn.Parameter) and norm.bias.requires_grad:
                    norm.bias.masked_fill_(norm.weight == 0, 0.0)

        return ProximalStep(optimizer, scales, self.norm, self.strength, self.target, after_step=silence)


def named_norm(settings: Sparsifying) -> Norm:
    """The norm in the name of a proximal method, such as proximal-l21."""
    return NORMS.find(settings.method.removeprefix("proximal-")).from_options(settings.group_size)


for _name in ("l1", "l21", "l12"):
    register_method(f"proximal-{_name}", Proximal)
