"""Commands about one model, named by its class or by the folder of a run: `diffsparse compact`, `measure`, `export`."""

import os
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from torch import Tensor, nn
from tyro.conf import Positional

from diffsparse.checkpoint import load, save
from diffsparse.cli.load import load_warning
from diffsparse.compaction import compact
from diffsparse.compaction.fastest import SECONDS, Backend
from diffsparse.errors import SparsityError
from diffsparse.export import export_onnx
from diffsparse.files import write_json
from diffsparse.measuring import Comparison, Measurement, by_layer, measure
from diffsparse.models.factory import find_factory, make_named, names, parse_arguments
from diffsparse.training.recorded import RecordedRun, is_run, open_run
from diffsparse.training.run import COMPACT, TRAINED

NO_ARGUMENTS = "{}"
INPUT = "1x3x224x224"
"""Of a model that is named by its class, if no shape is given."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A model, its weights and an input for it."""

    model: Positional[str]
    """The folder of a run, a name of diffsparse.models.names(), or your own class or function: package.module:Name."""
    arguments: str = NO_ARGUMENTS
    """Keyword arguments to call the class with, as a JSON object; a run knows its own."""
    weights: Path | None = None
    """A file written by diffsparse.save; by default that of the run, or none: the model is as its class makes it."""
    input: tuple[str, ...] = ()
    """Shape of each input, for example 1x3x32x32, random numbers; by default that of the run's data, or 1x3x224x224."""
    seed: int = 0
    """Seed of the model's start and of the input."""

    @cached_property
    def recorded(self) -> RecordedRun | None:
        """The run that `model` is the folder of; None if it is the name of a class."""
        path = Path(self.model)
        meant = os.sep in self.model or (path.is_dir() and self.model not in names())
        if not is_run(path) and (":" in self.model or not meant):
            return None
        if self.arguments != NO_ARGUMENTS:
            raise SparsityError(f"--arguments is for a class; the run in '{path}' knows its own")
        return open_run(path)

    def check(self, **outputs: Path | None) -> None:
        """Raise before any work if an option is wrong or an output, by the name of its option, cannot be written."""
        for option, path in outputs.items():
            check_writable(path, f"--{option}")
            if path is not None and self.recorded is not None:
                self.recorded.check_output(path)
        if self.recorded is None:
            try:
                find_factory(self.model)
            except SparsityError as error:
                no_run = "" if ":" in self.model else f"{self.model!r} is not the folder of a run: "
                raise SparsityError(f"{no_run}{error}") from error
            parse_arguments(self.arguments)
        self.example()

    def fresh(self) -> nn.Module:
        """A new instance of the model, without the weights."""
        if self.recorded is not None:
            return self.recorded.fresh()
        torch.manual_seed(self.seed)
        return make_named(self.model, parse_arguments(self.arguments))

    def loaded(self, of_run: str) -> nn.Module:
        """The model with the weights that were given, or those of the file `of_run` of the run, or as it begins."""
        weights = self.weights
        if weights is None and self.recorded is not None:
            weights = self.recorded.file(of_run)
        return self.fresh() if weights is None else load(weights, self.fresh())

    def example(self) -> tuple[Tensor, ...]:
        """Random input tensors of the shapes given, or an input of the run."""
        if not self.input and self.recorded is not None:
            return (self.recorded.example(),)
        generator, shown = torch.Generator().manual_seed(self.seed), self.input or (INPUT,)
        for text in shown:
            if not re.fullmatch(r"[1-9]\d*([x,][1-9]\d*)*", text):
                raise SparsityError(f"an input shape looks like 1x3x32x32, got {text!r}")
        shapes = [[int(size) for size in re.split("[x,]", text)] for text in shown]
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
        console = Console()
        model = self.loaded(TRAINED)
        options: dict[str, Any] = {"round_to": self.round_to, "strict": self.strict, "fold": self.fold or None}
        options |= {"optimize": self.optimize, "seconds": self.seconds, "backend": self.backend}
        with console.status("compacting"):
            small = compact(model, self.example(), tolerance=self.tolerance, **options)
        console.print(str(small), markup=False, highlight=False, soft_wrap=True)
        if small.plan.earlier and not small.plan.layers:
            console.print("this model is compact already: it became small before it was saved")
        console.print(small.after.convention, style="dim")
        save(small, self.output)
        if self.plan is not None:
            self.plan.write_text(small.plan.to_json() + "\n")
        console.print(f"saved to {self.output}", markup=False, soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class Measure(Target):
    """Count operations, parameters and memory, and time a model, alone or beside another.

    Of a run, the whole network is measured beside the compact one.
    """

    other: Path | None = None
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
        first, second = self._both()
        with console.status("measuring"):
            options: dict[str, Any] = {"latency": self.latency, "predict": self.predict, "seconds": self.seconds}
            figures: Measurement | Comparison = measure(first, self.example(), second, **options)
            if isinstance(figures, Comparison) and self._is_whole_run:
                figures = replace(figures, labels=("whole", "compact"))
            layers = by_layer(first, self.example(), second, seconds=self.seconds) if self.layers else None
        console.print(str(figures), markup=False, highlight=False, soft_wrap=True)
        if layers is not None:
            console.print(f"\n{layers}", markup=False, highlight=False, soft_wrap=True)
        if self.latency and (busy := load_warning()):
            console.print(busy, soft_wrap=True, highlight=False)
        if self.output is not None:
            write_json(self.output, figures.as_dict() | ({} if layers is None else {"by_layer": layers.as_dict()}))

    @property
    def _is_whole_run(self) -> bool:
        return self.other is None and self.weights is None and self.recorded is not None

    def _both(self) -> tuple[nn.Module, nn.Module | None]:
        if self._is_whole_run:
            return self.fresh(), self.loaded(COMPACT)
        other = None if self.other is None else load(self.other, self.fresh())
        return self.loaded(COMPACT), other


@dataclass(frozen=True, kw_only=True)
class Export(Target):
    """Write a model as ONNX with a dynamic batch, and check it against PyTorch; of a run, the compact network."""

    output: Path = Path("model.onnx")
    """Where to write."""
    dynamic: tuple[int, ...] = (0,)
    """Dimensions of the inputs that are free to change: 0 is the batch; 0 1 for sequences of any length."""
    input_names: tuple[str, ...] = ()
    """Names of the inputs in the file; by default those of the arguments of the model."""
    output_names: tuple[str, ...] = ()
    """Names of the outputs in the file; by default output, or output_0, output_1 and so on."""
    opset: int | None = None
    """Version of the ONNX operators; by default that of the exporter."""

    def run(self) -> None:
        """Load, export, check, print."""
        self.check(output=self.output)
        console = Console()
        model = self.loaded(COMPACT)
        options: dict[str, Any] = {"input_names": self.input_names or None, "output_names": self.output_names or None}
        with console.status("exporting"):
            difference = export_onnx(
                model, self.example(), self.output, dynamic=self.dynamic, opset=self.opset, **options
            )
        size = f"{self.output.stat().st_size:,} bytes"
        words = f"{self.output}: {size}, largest relative difference from PyTorch {difference:.2g}"
        console.print(words, markup=False, soft_wrap=True)


def check_writable(path: Path | None, option: str) -> None:
    """Raise if `path`, if given, cannot be a file to write."""
    if path is None:
        return
    if path.is_dir():
        raise SparsityError(f"{option} must be a file, but {path} is a folder")
    if not path.absolute().parent.is_dir():
        raise SparsityError(f"the folder of {option} does not exist: {path.absolute().parent}")
