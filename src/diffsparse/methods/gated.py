"""Differentiable sparsification, the method of this package, in the form the training loop wants."""

from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer

from diffsparse.gates import named_gates
from diffsparse.gating import sparsify
from diffsparse.methods.method import STEERING, Method, register_method
from diffsparse.methods.settings import Sparsifying
from diffsparse.penalties import L1, Norm, Penalty, Regulariser


@dataclass(frozen=True, kw_only=True)
class Gated(Method):
    """Gates with learned thresholds on every batch norm, or those that the model brings itself.

    `Sparsifying` describes the fields, which are options of the same names.
    """

    strength: float
    norm: Norm = field(default_factory=L1)
    start: float = 0.5
    rgf: float | None = None

    options = STEERING | {"norm", "group_size", "start", "rgf", "target"}

    @classmethod
    def from_settings(cls, settings: Sparsifying) -> Method:
        return cls(strength=settings.strength, norm=settings.chosen_norm(), start=settings.start, rgf=settings.rgf)

    def prepare(self, model: nn.Module) -> nn.Module:
        if any(True for _ in named_gates(model)):
            return model
        return sparsify(model, start=self.start, rgf=self.rgf)

    def regulariser(self, model: nn.Module, optimizer: Optimizer) -> Regulariser:
        return Penalty(model, self.norm, self.strength)


register_method("ds", Gated)
