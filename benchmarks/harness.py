"""What every benchmark shares: interleaved timing, peak memory of one call, a JSON record."""

import ctypes
import json
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile

import diffsparse as ds

RESULTS = Path(__file__).parent / "results"


def keep_memory() -> bool:
    """Let the C library keep freed memory, as the allocators of servers do; whether it could be told so.

    By default it hands large tensors back to the system at once, and the page faults of the next ones hit one network
    harder than another by chance.
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
    """Seconds of each call, one of each a round, so that drift of the machine hits all alike.

    Each round has an order of its own: what ran before leaves memory and caches in a better or worse state.
    """
    for _ in range(warmup):
        for call in calls.values():
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    order, shuffler = list(calls), random.Random(0)
    for _ in range(rounds):
        shuffler.shuffle(order)
        for name in order:
            began = time.perf_counter()
            calls[name]()
            times[name].append(time.perf_counter() - began)
    return times


def median_ratio(times: Mapping[str, list[float]], over: str, under: str) -> float:
    """Median over the rounds of the ratio within one round."""
    return statistics.median(a / b for a, b in zip(times[over], times[under], strict=True))


def peak_bytes(call: Callable[[], object]) -> int:
    """Most bytes that tensors allocated by one call hold at once, from PyTorch's own allocator events."""
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


def training_step(model: nn.Module, optimizer: Optimizer, penalty: ds.Penalty | None, batch: int) -> Callable[[], None]:
    """One step on random CIFAR-shaped images: forward, loss (with penalty if there is one), backward, update."""
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))

    def step() -> None:
        loss = F.cross_entropy(model(images), labels)
        if penalty is not None:
            loss = loss + penalty()
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
