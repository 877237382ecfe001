"""One architecture: built, partly killed, compacted, compared with itself and with what is live."""

import copy
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import diffsparse as ds
from diffsparse.example import tensors_in
from tests.compaction.architectures.architecture import Architecture, Inputs
from tests.compaction.architectures.deaths import kill
from tests.compaction.oracle import live_macs

TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Result:
    """One line of the table."""

    name: str
    source: str
    before: int
    """MACs of the example, those of products between activations included; `after`: of the compact model."""
    after: int
    live: int
    """MACs that the oracle calls live; `least`: with blocks of one size, and one width of a module for all calls."""
    least: int
    seconds: float
    """Of `compact`."""
    problem: str = ""
    """Empty, or how it was refused or is wrong."""
    fallbacks: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """x/live."""
        return self.after / self.live if self.live else float(self.after > 0)

    @property
    def above_least(self) -> float:
        """x/least."""
        return self.after / self.least if self.least else float(self.after > 0)


def call(model: nn.Module, given: Inputs) -> Any:
    """Run a model on copies."""
    given = copy.deepcopy(given)
    return model(**given) if isinstance(given, dict) else model(*given)


def half_dead(architecture: Architecture, *, shifts: bool, seed: int = 0) -> nn.Module:
    """The network with its dead channels."""
    model = architecture.made(seed)
    kill(model, lambda s: call(model, architecture.inputs(s)), shifts=shifts, whole=architecture.whole, seed=seed)
    return model


def examine(architecture: Architecture, *, shifts: bool, seed: int = 0) -> Result:
    """Build, kill, compact, compare and count."""
    model, example = half_dead(architecture, shifts=shifts, seed=seed), architecture.inputs(100 + seed)
    found = live_macs(model, architecture.inputs)
    before = macs(model, example)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            small = ds.compact(model, example)
        except Exception as error:
            spent, problem = time.perf_counter() - start, f"refused: {type(error).__name__}: {error}"
            named = {"name": architecture.name, "source": architecture.source, "live": found.live, "least": found.least}
            return Result(**named, before=before, after=before, seconds=spent, problem=problem)
    return Result(
        name=architecture.name,
        source=architecture.source,
        before=before,
        seconds=time.perf_counter() - start,
        after=macs(small.model, example),
        live=found.live,
        least=found.least,
        problem=compared(architecture, model, small.model),
        fallbacks=small.fallbacks,
        kept=tuple(sorted({f"{entry.layer}: {entry.reason}" for entry in small.kept})),
    )


def macs(model: nn.Module, example: Inputs) -> int:
    """All multiply-accumulates, those of attention too."""
    return ds.measure(model, example, latency=False).macs


@torch.no_grad()
def compared(architecture: Architecture, model: nn.Module, small: nn.Module) -> str:
    """How the compact model differs from the original, over batch sizes and sizes; empty if it does not."""
    for number, (batch, size) in enumerate([(architecture.batch, architecture.size), *architecture.others]):
        given = architecture.inputs(200 + number, batch, size)
        expected = list(tensors_in(call(model, given)))
        where = f"at batch size {batch} and size {size}"
        try:
            got = list(tensors_in(call(small, given)))
        except Exception as error:
            return f"refuses input {where}: {type(error).__name__}: {error}"
        if [t.shape for t in got] != [t.shape for t in expected]:
            return f"wrong {where}: other shapes"
        for a, b in zip(expected, got, strict=True):
            apart = float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)) if a.numel() else 0.0
            if not apart <= TOLERANCE:
                return f"wrong {where}: outputs differ by {apart:.2g} relative"
    return ""
