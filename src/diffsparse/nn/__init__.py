"""Layers with gates in them."""

from diffsparse.nn.batchnorm import SparseBatchNorm, SparseBatchNorm1d, SparseBatchNorm2d, SparseBatchNorm3d
from diffsparse.nn.graph import GraphConvolution, SparseAdjacency
from diffsparse.nn.sparse_sum import SparseSum

__all__ = [
    "GraphConvolution",
    "SparseAdjacency",
    "SparseBatchNorm",
    "SparseBatchNorm1d",
    "SparseBatchNorm2d",
    "SparseBatchNorm3d",
    "SparseSum",
]
