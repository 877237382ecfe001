"""`diffsparse export`: an ONNX file, checked with onnxruntime."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from diffsparse.cli.target import Target, check_writable
from diffsparse.export import export_onnx


@dataclass(frozen=True, kw_only=True)
class Export(Target):
    """Write a model as ONNX with a dynamic batch, and check it against PyTorch."""

    output: Path = Path("model.onnx")
    """Where to write."""


def run_export(config: Export) -> None:
    """Load, export, check, print."""
    config.check()
    check_writable(config.output, "--output")
    console = Console()
    model = config.loaded()
    with console.status("exporting"):
        difference = export_onnx(model, config.example(), config.output)
    size = config.output.stat().st_size
    console.print(
        f"{config.output}: {size:,} bytes, largest relative difference from PyTorch {difference:.2g}", markup=False
    )
