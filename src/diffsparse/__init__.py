"""Neural networks that become smaller while they train.

Gates with learned thresholds drive channels, layers, groups or edges to exactly zero by plain SGD and one extra loss
term; compaction then removes them without changing what the model computes.
"""

import importlib
from types import ModuleType

from diffsparse import functional
from diffsparse.averaging import MovingAverage
from diffsparse.budget import Budget
from diffsparse.checkpoint import load, save
from diffsparse.compaction import Compacted, Plan, apply_plan, compact, register_rule, slice_optimizer
from diffsparse.errors import CheckpointError, SparsityError, SparsityWarning
from diffsparse.export import export_onnx
from diffsparse.gates import MatrixGate, SignedGate, SimplexGate
from diffsparse.gating import gating_report, parameter_groups, sparsify, sparsity
from diffsparse.measuring import Comparison, Measurement, measure
from diffsparse.nn import (
    GraphConvolution,
    SparseAdjacency,
    SparseBatchNorm1d,
    SparseBatchNorm2d,
    SparseBatchNorm3d,
    SparseSum,
)
from diffsparse.penalties import (
    L1,
    ExclusiveL12,
    GradualStrength,
    GroupL21,
    Lp,
    Norm,
    Penalty,
    ProximalStep,
    auto_strength,
)
from diffsparse.sharding import gathered, replicate_gates
from diffsparse.version import __version__ as __version__

__all__ = [
    "CheckpointError",
    "Comparison",
    "Budget",
    "Compacted",
    "L1",
    "ExclusiveL12",
    "GradualStrength",
    "GraphConvolution",
    "GroupL21",
    "Lp",
    "MatrixGate",
    "Measurement",
    "MovingAverage",
    "Norm",
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
    "auto_strength",
    "compact",
    "export_onnx",
    "functional",
    "gathered",
    "gating_report",
    "load",
    "measure",
    "parameter_groups",
    "register_rule",
    "replicate_gates",
    "save",
    "slice_optimizer",
    "sparsify",
    "sparsity",
]

# What most users never need is imported when it is first asked for.
_LAZY = frozenset({"data", "graphs", "methods", "models", "plot", "testing", "text", "traffic", "training", "wiring"})


def __getattr__(name: str) -> ModuleType:
    if name in _LAZY:
        return importlib.import_module(f"diffsparse.{name}")
    raise AttributeError(f"module 'diffsparse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
