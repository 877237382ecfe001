"""Models on disk: one safetensors file with weights, plan and gates, and no pickle."""

from diffsparse.checkpoint.loading import load, read_header
from diffsparse.checkpoint.saving import GateRecord, Header, TensorRecord, save
from diffsparse.errors import CheckpointError

__all__ = ["CheckpointError", "GateRecord", "Header", "TensorRecord", "load", "read_header", "save"]
