"""How gates are penalised: norms, the loss term, lambda over a run, and the proximal alternative."""

from diffsparse.penalties.norms import L1, NORMS, ExclusiveL12, GroupL21, Lp, Norm, register_norm
from diffsparse.penalties.penalty import Penalty, Regulariser
from diffsparse.penalties.proximal import ProximalStep
from diffsparse.penalties.strength import (
    FixedStrength,
    GradualStrength,
    SteeredStrength,
    StrengthController,
    auto_strength,
)

__all__ = [
    "ExclusiveL12",
    "FixedStrength",
    "GradualStrength",
    "GroupL21",
    "L1",
    "Lp",
    "NORMS",
    "Norm",
    "Penalty",
    "ProximalStep",
    "Regulariser",
    "SteeredStrength",
    "StrengthController",
    "auto_strength",
    "register_norm",
]
