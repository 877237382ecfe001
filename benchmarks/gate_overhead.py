"""One training step of a gated network against the plain one: time and peak memory, interleaved in one run."""

import argparse
import statistics
from collections.abc import Callable

import torch
from harness import interleaved_times, median_ratio, peak_bytes, random_images, training_step, write_record

import diffsparse as ds
from diffsparse.models import PreResNet


def step_of(depth: int, batch: int, gated: bool) -> Callable[[], None]:
    """One step on random images: forward, loss (with penalty), backward, SGD."""
    torch.manual_seed(0)
    model = PreResNet(depth)
    if gated:
        model = ds.sparsify(model, start=0.5)
    penalty = ds.Penalty(model, strength=1e-4) if gated else None
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.01, momentum=0.9, nesterov=True)
    return training_step(model, optimizer, penalty, *random_images(batch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=32, help="depth of the pre-activation ResNet")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    steps = {kind: step_of(args.depth, args.batch, kind == "gated") for kind in ("plain", "gated")}
    times = interleaved_times(steps, args.rounds)
    memory = {kind: peak_bytes(step) for kind, step in steps.items()}
    results = {
        "config": vars(args),
        "median_seconds": {kind: statistics.median(seconds) for kind, seconds in times.items()},
        "time_ratio": median_ratio(times, "gated", "plain"),
        "peak_bytes": memory,
        "memory_ratio": memory["gated"] / memory["plain"],
        "targets": {"time_ratio": 1.05, "memory_ratio": 1.02},
    }
    for kind in steps:
        print(
            f"{kind:<6} {results['median_seconds'][kind] * 1e3:8.1f} ms per step, peak {memory[kind] / 2**20:7.1f} MiB"
        )
    print(f"gated / plain: time {results['time_ratio']:.3f}, memory {results['memory_ratio']:.4f}")
    print(f"written to {write_record('gate_overhead', results).name}")


if __name__ == "__main__":
    main()
