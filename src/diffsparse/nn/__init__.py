"""Layers with gates in them."""

from diffsparse.nn.batchnorm import SparseBatchNorm, SparseBatchNorm1d, SparseBatchNorm2d, SparseBatchNorm3d
from diffsparse.nn.gated_layer import GatedLayer, GatePart, Side, gate_layer
from diffsparse.nn.graph import GraphConvolution, SparseAdjacency
from diffsparse.nn.sparse_sum import SparseSum

__all__ = [
    "GatePart",
    "GatedLayer",
    "GraphConvolution",
    "SparseAdjacency",
    "SparseBatchNorm",
    "SparseBatchNorm1d",
    "SparseBatchNorm2d",
    "SparseBatchNorm3d",
    "SparseSum",
    "Side",
    "gate_layer",
]
