"""Gates put into a model, its parameters sorted, its zeros counted."""

from diffsparse.gating.insert import parameter_groups, sparsify, warn_of_idle_gates
from diffsparse.gating.zeros import Count, GateSparsity, Sparsity, sparsity

__all__ = ["Count", "GateSparsity", "Sparsity", "parameter_groups", "sparsify", "sparsity", "warn_of_idle_gates"]
