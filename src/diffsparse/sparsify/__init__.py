"""Gates put into a model, its parameters sorted, its zeros counted."""

from diffsparse.sparsify.parameter_groups import parameter_groups
from diffsparse.sparsify.sparsify import sparsify
from diffsparse.sparsify.sparsity import Count, GateSparsity, Sparsity, sparsity

__all__ = ["Count", "GateSparsity", "Sparsity", "parameter_groups", "sparsify", "sparsity"]
