"""How gates are penalised: norms, the loss term, and the proximal alternative."""

from diffsparse.penalties.norms import L1, ExclusiveL12, GroupL21, Lp, Norm
from diffsparse.penalties.penalty import Penalty
from diffsparse.penalties.proximal import ProximalStep

__all__ = ["L1", "ExclusiveL12", "GroupL21", "Lp", "Norm", "Penalty", "ProximalStep"]
