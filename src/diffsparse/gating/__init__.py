"""Gates put into a model, its parameters sorted, its zeros counted."""

from diffsparse.gating.groups import parameter_groups, warn_of_forgotten_parameters, warn_of_idle_gates
from diffsparse.gating.insert import sparsify
from diffsparse.gating.report import GatingReport, gating_report
from diffsparse.gating.zeros import Count, GateSparsity, Sparsity, sparsity

__all__ = ["Count", "GateSparsity", "GatingReport", "Sparsity", "gating_report", "parameter_groups", "sparsify"]
__all__ += ["sparsity", "warn_of_forgotten_parameters", "warn_of_idle_gates"]
