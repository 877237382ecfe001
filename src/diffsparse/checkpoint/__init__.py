"""Models on disk: one safetensors file with weights, plan and gates, and no pickle."""

from diffsparse.checkpoint.header import GateRecord, Header, TensorRecord, read_header
from diffsparse.checkpoint.loading import load
from diffsparse.checkpoint.saving import save
from diffsparse.errors import CheckpointError

__all__ = ["CheckpointError", "GateRecord", "Header", "TensorRecord", "load", "read_header", "save"]
