"""Models on disk: one safetensors file with weights, plan and gates, and no pickle."""

from diffsparse.checkpoint.errors import CheckpointError
from diffsparse.checkpoint.header import GateRecord, Header, SparseLayer, TensorRecord
from diffsparse.checkpoint.load import load
from diffsparse.checkpoint.read import read_header
from diffsparse.checkpoint.save import save

__all__ = ["CheckpointError", "GateRecord", "Header", "SparseLayer", "TensorRecord", "load", "read_header", "save"]
