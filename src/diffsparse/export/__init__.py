"""Models written for other runtimes."""

from diffsparse.export.onnx import export_onnx

__all__ = ["export_onnx"]
