"""Commands about one model, named by its class: `diffsparse compact`, `measure` and `export`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from torch import nn
from tyro.conf import Positional

from diffsparse.checkpoint import load, read_header, save
from diffsparse.compaction import compact
from diffsparse.compaction.fastest import SECONDS, Backend
from diffsparse.errors import SparsityError
from diffsparse.export import export_onnx
from diffsparse.files import write_json
from diffsparse.measuring import by_layer, measure
from diffsparse.models.factory import find_factory, make_named, parse_arguments


@dataclass(frozen=True, kw_only=True)
class Target:
    """A model, its weights and an input for it."""

    model: Positional[str]
    """A name of diffsparse.models.names(), or where your class or a function that makes one is: package.module:Name."""
    arguments: str = "{}"
    """Keyword arguments to call it with, as a JSON object."""
    weights: Path | None = None
    """A file written by diffsparse.save; without it the model is as its class makes it."""
    input: tuple[str, ...] = ("1x3x224x224",)
    """Shape of each input tensor, for example 1x3x32x32; filled with random numbers."""
    seed: int = 0
    """Seed of the model's start and of the input."""

    def check(self, **outputs: Path | None) -> None:
        """Raise before any work if an option is wrong or an output, by the name of its option, cannot be written."""
        find_factory(self.model)
        parse_arguments(self.arguments)
        self.example()
        for option, path in outputs.items():
            check_writable(path, f"--{option}")

    def loaded(self, weights: Path | None) -> nn.Module:
        """A fresh instance of the model, with the weights if there are any."""
        torch.manual_seed(self.seed)
        model = make_named(self.model, parse_arguments(self.arguments))
        return model if weights is None else load(weights, model)

    def example(self) -> tuple[torch.Tensor, ...]:
        """Random input tensors of the shapes given."""
        generator = torch.Generator().manual_seed(self.seed)
        for text in self.input:
            if not re.fullmatch(r"[1-9]\d*([x,][1-9]\d*)*", text):
                raise SparsityError(f"an input shape looks like 1x3x32x32, got {text!r}")
        shapes = [[int(size) for size in re.split("[x,]", text)] for text in self.input]
        return tuple(torch.randn(shape, generator=generator) for shape in shapes)


@dataclass(frozen=True, kw_only=True)
class Compact(Target):
    """Make a model smaller where its gates or weights are zero, verify it and save it."""

    output: Path = Path("compact.safetensors")
    """Where to save the compact model."""
    plan: Path | None = None
    """Where to also write the plan as JSON."""
    round_to: int = 1
    """Keep a few dead channels so that widths are multiples of this."""
    fold: bool = False
    """Fold batch norms into the layers in front of them; with --optimize they are folded where that is faster."""
    optimize: Literal["latency"] | None = None
    """latency decides by the clock which dead channels to keep; never slower than the original."""
    seconds: float = SECONDS
    """How long --optimize may take, about."""
    backend: Backend = "torch"
    """What --optimize runs."""
    strict: bool = False
    """Fail instead of keeping a layer that no rule describes."""
    tolerance: float | None = None
    """Largest relative difference to accept; by default what rounding does."""

    def run(self) -> None:
        """Load, compact, print the plan and the costs, save."""
        self.check(output=self.output, plan=self.plan)
        if self.weights is not None and read_header(self.weights).kind == "compact":
            raise SparsityError(f"{self.weights} is already compact; give the gated file that it was made from")
        console = Console()
        model = self.loaded(self.weights)
        options: dict[str, Any] = {"round_to": self.round_to, "strict": self.strict, "fold": self.fold or None}
        options |= {"optimize": self.optimize, "seconds": self.seconds, "backend": self.backend}
        with console.status("compacting"):
            small = compact(model, self.example(), tolerance=self.tolerance, **options)
        console.print(str(small), markup=False, highlight=False, soft_wrap=True)
        console.print(small.after.convention, style="dim")
        save(small, self.output)
        if self.plan is not None:
            self.plan.write_text(small.plan.to_json() + "\n")
        console.print(f"saved to {self.output}", markup=False)


@dataclass(frozen=True, kw_only=True)
class Measure(Target):
    """Count operations, parameters and memory, and time a model, alone or beside another."""

    against: Path | None = None
    """A second file of the same class, for example the compact one; both are timed in turns."""
    latency: bool = True
    """Whether to time at all."""
    seconds: float = 1.0
    """How long to time each model."""
    layers: bool = False
    """Also show where the time goes, layer by layer, and times at batch 1 and in onnxruntime if it is installed."""
    predict: bool = False
    """Also say what the table of latencies in your cache predicts; layers that it does not have are timed."""
    output: Path | None = None
    """Where to also write the figures as JSON."""

    def run(self) -> None:
        """Measure and print."""
        self.check(output=self.output)
        console = Console()
        model = self.loaded(self.weights)
        other = None if self.against is None else self.loaded(self.against)
        with console.status("measuring"):
            options: dict[str, Any] = {"latency": self.latency, "predict": self.predict, "seconds": self.seconds}
            figures = measure(model, self.example(), other, **options)
            layers = by_layer(model, self.example(), other, seconds=self.seconds) if self.layers else None
        console.print(str(figures), markup=False, highlight=False, soft_wrap=True)
        if layers is not None:
            console.print(f"\n{layers}", markup=False, highlight=False, soft_wrap=True)
        if self.output is not None:
            write_json(self.output, figures.as_dict() | ({} if layers is None else {"by_layer": layers.as_dict()}))


@dataclass(frozen=True, kw_only=True)
class Export(Target):
    """Write a model as ONNX with a dynamic batch, and check it against PyTorch."""

    output: Path = Path("model.onnx")
    """Where to write."""

    def run(self) -> None:
        """Load, export, check, print."""
        self.check(output=self.output)
        console = Console()
        model = self.loaded(self.weights)
        with console.status("exporting"):
            difference = export_onnx(model, self.example(), self.output)
        size = f"{self.output.stat().st_size:,} bytes"
        console.print(f"{self.output}: {size}, largest relative difference from PyTorch {difference:.2g}", markup=False)


def check_writable(path: Path | None, option: str) -> None:
    """Raise if `path`, if given, cannot be a file to write."""
    if path is None:
        return
    if path.is_dir():
        raise SparsityError(f"{option} must be a file, but {path} is a folder")
    if not path.absolute().parent.is_dir():
        raise SparsityError(f"the folder of {option} does not exist: {path.absolute().parent}")
