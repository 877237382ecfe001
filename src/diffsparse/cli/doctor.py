"""`diffsparse doctor`: what is installed, whether the package works here, and how fast a layer runs."""

import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

import diffsparse
from diffsparse.budget import Budget
from diffsparse.checkpoint import load, save
from diffsparse.cli.load import load_warning
from diffsparse.cli.tables import figures_table
from diffsparse.compaction import compact
from diffsparse.gating import parameter_groups, sparsify
from diffsparse.measuring.meter import measure_in_turns

CORE = ("torch", "numpy", "safetensors", "tyro", "rich")
DEVELOPMENT = {"dev", "docs"}
"""Extras that users do not need."""
WIDTHS = (64, 32)
"""Channels of the convolutions that are timed."""
STEPS = 24


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Show versions and extras, test the package in a few seconds and time a layer."""

    def run(self) -> None:
        """Print; exit code 1 if a test fails."""
        console = Console()
        for name, text in setting().items():
            console.print(f"{name:<12} {text}", markup=False, highlight=False, soft_wrap=True)
        rows = {name: {"packages": packages, "": state} for name, packages, state in extras()}
        console.print(figures_table("extra", rows, title="Optional parts"))
        failures = sum(not passed for passed in _self_test(console))
        for line in filter(None, (layer_times(), load_warning())):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if failures:
            console.print(f"{failures} of the tests failed", style="red")
            sys.exit(1)
        console.print("diffsparse works here", style="green")


def setting() -> dict[str, str]:
    """Versions, machine and threads."""
    packages = ", ".join(f"{name} {version(name)}" for name in CORE)
    told = os.environ.get("OMP_NUM_THREADS")
    asked = f", OMP_NUM_THREADS={told}" if told else ""
    devices = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "diffsparse": f"{diffsparse.__version__} in {Path(diffsparse.__file__).parent}",
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "packages": packages,
        "threads": f"{torch.get_num_threads()} in torch, of {os.cpu_count()} cores{asked}",
        "GPUs": ", ".join(devices) or "none that torch can use",
    }


def extras() -> Iterator[tuple[str, str, str]]:
    """Each extra with the packages that it needs, and whether they are there."""
    needed: dict[str, list[str]] = {}
    for line in requires("diffsparse") or []:
        if match := re.match(r"([\w.-]+).*;\s*extra == ['\"]([\w-]+)['\"]", line):
            needed.setdefault(match[2], []).append(match[1])
    for extra, packages in needed.items():
        if extra not in DEVELOPMENT:
            found = {package: _installed(package) for package in packages}
            missing = [package for package, number in found.items() if number is None]
            state = f"missing; pip install {' '.join(missing)}" if missing else "there"
            yield extra, ", ".join(f"{name} {number or '-'}" for name, number in found.items()), state


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _self_test(console: Console) -> Iterator[bool]:
    """Run the tests one after the other, each on what the one before has made; print how each went."""
    with tempfile.TemporaryDirectory() as folder:
        patient = Patient(Path(folder) / "net.safetensors")
        tests: dict[str, Callable[[], str]] = {
            "gates": patient.gate,
            "budget": patient.train,
            "compact": patient.compact,
            "files": patient.save_and_load,
        }
        for name, test in tests.items():
            began = time.perf_counter()
            try:
                words, passed = test(), True
            except Exception as error:
                # whatever goes wrong here is what the user wants to know
                words, passed = f"{type(error).__name__}: {error}", False
            line = f"{'ok    ' if passed else 'FAILED'} {name:<8} {time.perf_counter() - began:5.1f} s  {words}"
            console.print(line, markup=False, highlight=False, soft_wrap=True, style="" if passed else "red")
            yield passed


class Patient:
    """A tiny network that goes through everything: gates, a budget, compaction, a file."""

    def __init__(self, path: Path) -> None:
        draw = torch.Generator().manual_seed(0)
        self.path = path
        self.images = torch.randn(32, 3, 6, 6, generator=draw)
        self.labels = (self.images[:, 0].mean((1, 2)) > 0).long()

    def gate(self) -> str:
        """Gates change nothing at first."""
        model = _net().eval()
        same = torch.allclose(model(self.images), sparsify(model)(self.images), atol=1e-5)
        _require(same, "gates changed the outputs")
        return "outputs with gates are the same"

    def train(self) -> str:
        """A budget reaches its number."""
        model = sparsify(_net(), start=1.0).train()
        whole = measure_in_turns([_net()], self.images[:1], latency=False)[0].macs
        budget = Budget(model, self.images[:2], macs=0.5, steps=STEPS)
        optimizer = torch.optim.SGD(parameter_groups(model), lr=0.1, momentum=0.9)
        for _ in range(STEPS):
            loss = nn.functional.cross_entropy(model(self.images), self.labels) + budget.penalty()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            budget.step(optimizer)
        macs = measure_in_turns([model], self.images[:1], latency=False)[0].macs
        _require(macs <= 0.5 * whole, f"{macs:,} of {whole:,} MACs are more than half")
        return f"half the MACs asked for: {macs:,} of {whole:,} after {STEPS} steps"

    def compact(self) -> str:
        """Zeros leave the network, and the outputs stay."""
        model = sparsify(_net())
        norms = [module for module in model.modules() if isinstance(module, diffsparse.SparseBatchNorm2d)]
        for norm in norms:
            values = norm.gate().detach()
            norm.gate = diffsparse.SignedGate.from_values((values * (torch.arange(len(values)) % 2)).tolist())
        self.small = compact(model.eval(), self.images[:1])
        before, after = self.small.before.macs, self.small.after.macs
        _require(after < before / 2, f"{after:,} of {before:,} MACs are left")
        difference = float((model(self.images) - self.small.model(self.images)).detach().abs().max())
        _require(difference < 1e-4, f"outputs differ by {difference:.2g}")
        return f"every other channel closed: {after:,} of {before:,} MACs, outputs differ by {difference:.1g}"

    def save_and_load(self) -> str:
        """A file gives back the same network."""
        save(self.small, self.path)
        again = load(self.path, _net()).eval()
        _require(torch.equal(again(self.images), self.small.model(self.images)), "the file gives other outputs")
        return f"{self.path.stat().st_size:,} bytes, the same outputs"


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    more = [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*body, *more, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2))


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RuntimeError(otherwise)


def layer_times() -> str:
    """A convolution, whole and of half the width, timed in turns."""
    layers = [nn.Conv2d(width, width, 3, padding=1) for width in WIDTHS]
    words = []
    for width, layer in zip(WIDTHS, layers, strict=True):
        (found,) = measure_in_turns([layer], torch.randn(16, width, 32, 32), seconds=0.3)
        assert found.latency is not None
        seconds = found.latency.median
        words.append(f"{width} channels {1e3 * seconds:.2f} ms ({found.macs / seconds / 1e9:,.0f} GMAC/s)")
    return f"a 3 x 3 convolution on 16 maps of 32 x 32: {', '.join(words)}"
