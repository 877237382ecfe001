"""Layers with gates in them."""

from diffsparse.nn.batchnorm import SparseBatchNorm, SparseBatchNorm1d, SparseBatchNorm2d, SparseBatchNorm3d
from diffsparse.nn.sparse_sum import SparseSum

__all__ = ["SparseBatchNorm", "SparseBatchNorm1d", "SparseBatchNorm2d", "SparseBatchNorm3d", "SparseSum"]
