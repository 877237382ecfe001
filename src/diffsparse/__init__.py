"""Neural networks that become smaller while they train.

Gates with learned thresholds drive channels, layers, groups or edges to exactly zero by plain SGD and one extra loss
term; compaction then removes them without changing what the model computes.
"""

from diffsparse import functional
from diffsparse.checkpoint import CheckpointError, load, save
from diffsparse.compact import Compacted, Plan, apply_plan, compact, slice_optimizer
from diffsparse.errors import SparsityError, SparsityWarning
from diffsparse.export import export_onnx
from diffsparse.gates import MatrixGate, SignedGate, SimplexGate
from diffsparse.measure import Comparison, Measurement, measure
from diffsparse.nn import (
    GraphConvolution,
    SparseAdjacency,
    SparseBatchNorm1d,
    SparseBatchNorm2d,
    SparseBatchNorm3d,
    SparseSum,
)
from diffsparse.penalties import L1, ExclusiveL12, GroupL21, Lp, Penalty, ProximalStep
from diffsparse.schedules import GradualStrength
from diffsparse.sparsify import parameter_groups, sparsify, sparsity

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "Comparison",
    "Compacted",
    "L1",
    "ExclusiveL12",
    "GradualStrength",
    "GraphConvolution",
    "GroupL21",
    "Lp",
    "MatrixGate",
    "Measurement",
    "Penalty",
    "Plan",
    "ProximalStep",
    "SignedGate",
    "SimplexGate",
    "SparseAdjacency",
    "SparseBatchNorm1d",
    "SparseBatchNorm2d",
    "SparseBatchNorm3d",
    "SparseSum",
    "SparsityError",
    "SparsityWarning",
    "apply_plan",
    "compact",
    "export_onnx",
    "functional",
    "load",
    "measure",
    "parameter_groups",
    "save",
    "slice_optimizer",
    "sparsify",
    "sparsity",
]
