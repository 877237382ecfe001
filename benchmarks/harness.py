"""What the benchmarks share: interleaved timing, peak memory of one call, a JSON record."""

import ctypes
import json
import platform
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile

import diffsparse as ds
from diffsparse.measuring.latency import interleaved_seconds

RESULTS = Path(__file__).parent / "results"


def keep_memory() -> bool:
    """Tell the C library to keep freed memory, as allocators of servers do; returns whether that worked.

    By default it returns large tensors to the system at once, and the page faults of the next ones slow down one
    network more than another by chance.
    """
    trim_threshold, mmap_max = -1, -4
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:
        return False
    return bool(libc.mallopt(trim_threshold, 2**31 - 1) and libc.mallopt(mmap_max, 0))


def interleaved_times(
    calls: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 2
) -> dict[str, list[float]]:
    """The seconds of each call in each round, timed in turns on the CPU."""
    times = interleaved_seconds(
        list(calls.values()), device=torch.device("cpu"), seconds=0, warmup=warmup, min_runs=rounds
    )
    return dict(zip(calls, times, strict=True))


def median_ratio(times: Mapping[str, list[float]], over: str, under: str) -> float:
    """Median over the rounds of the ratio within one round."""
    return statistics.median(a / b for a, b in zip(times[over], times[under], strict=True))


def peak_bytes(call: Callable[[], object]) -> int:
    """The most memory that the tensors allocated by one call take at once, from PyTorch's allocator events."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    events = record.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak


def forward_of(model: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    """One pass of `model` on `x`, in eval mode and without gradients."""
    model.eval()

    @torch.no_grad()
    def run() -> Tensor:
        return model(x)

    return run


def random_images(batch: int) -> tuple[Tensor, Tensor]:
    """Images of the shape of CIFAR's, and labels."""
    return torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))


def training_step(
    model: nn.Module, optimizer: Optimizer, term: Callable[[], Tensor] | None, inputs: Tensor, labels: Tensor
) -> Callable[[], None]:
    """One step: forward, loss (with a term if there is one), backward, update."""

    def step() -> None:
        loss = F.cross_entropy(model(inputs), labels)
        if term is not None:
            loss = loss + term()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def write_record(name: str, results: Mapping[str, Any]) -> Path:
    """Write results with versions and thread count to benchmarks/results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    record = {
        "benchmark": name,
        "versions": {
            "diffsparse": ds.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "threads": torch.get_num_threads(),
        **results,
    }
    path.write_text(json.dumps(record, indent=2) + "\n")
    return path
