"""What a budget costs while it works, and what it saves: the time of a look, of all its calls, of a whole training.

    python benchmarks/budget_cost.py --data-root DIR

A look is timed on a ResNet-164 with 12,112 gate entries. The training is of a ResNet-56 on CIFAR-10 to 30 % of its
MACs; the plain network, one shrink and three shrinks take their steps in turns. Looks, landing and making the network
small all count; making the budget is listed on its own. Writes benchmarks/results/budget_cost.json.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import RESULTS, keep_memory, write_record
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.data import open_data

SHARE = 0.3


def look_times(steps: int = 3000, every: int = 50) -> dict[str, float]:
    """Median and slowest look at a ResNet-164, along the way to the budget, with gates that drift at random."""
    torch.manual_seed(0)
    model = ds.sparsify(ds.models.create("preresnet164"), start=0.5)
    gates = [gate for _, gate in ds.gates.named_gates(model)]
    began = time.perf_counter()
    budget = ds.Budget(model, torch.randn(1, 3, 32, 32), macs=SHARE, steps=steps, due=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    built, times = time.perf_counter() - began, []
    for step in range(1, steps):
        with torch.no_grad():
            if step % every == 1:
                for gate in gates:
                    gate.alpha.mul_(torch.empty_like(gate.alpha).uniform_(0.9, 1.1))
        began = time.perf_counter()
        budget.step(optimizer)
        if step % 10 == 0:
            times.append(time.perf_counter() - began)
    began = time.perf_counter()
    budget.step(optimizer)
    return {
        "make_seconds": built,
        "look_median_ms": 1e3 * statistics.median(times),
        "look_slowest_ms": 1e3 * max(times),
        "landing_seconds": time.perf_counter() - began,
    }


class Run:
    """One training; `step` takes a batch."""

    def __init__(self, steps: int, shrinks: int | None, example: Tensor) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = ds.models.create("preresnet56")
        self.seconds = self.in_budget = 0.0
        began = time.perf_counter()
        self.budget = None
        if shrinks is not None:
            self.model = ds.sparsify(self.model, start=0.5)
            self.budget = ds.Budget(self.model, example, macs=SHARE, steps=steps, shrinks=shrinks)
        self.make_seconds = time.perf_counter() - began
        self.optimizer = torch.optim.SGD(ds.parameter_groups(self.model), lr=0.05, momentum=0.9)

    def step(self, x: Tensor, y: Tensor) -> None:
        began = time.perf_counter()
        loss = F.cross_entropy(self.model(x), y)
        if self.budget is not None:
            asked = time.perf_counter()
            loss = loss + self.budget.penalty()
            self.in_budget += time.perf_counter() - asked
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.budget is not None:
            asked = time.perf_counter()
            self.budget.step(self.optimizer)
            self.in_budget += time.perf_counter() - asked
        self.seconds += time.perf_counter() - began


def batches(root: Path, size: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of CIFAR-10, as often as needed."""
    data, epoch, given = open_data("cifar10", root=root).train, 0, 0
    while given < steps:
        for batch in data.shuffled(size, seed=0, epoch=epoch):
            yield batch
            given += 1
            if given == steps:
                return
        epoch += 1


def training(root: Path, steps: int, batch: int) -> dict[str, Any]:
    """Seconds of three whole trainings, whose steps are taken in turns."""
    example = torch.randn(1, 3, 32, 32)
    runs = {
        "plain": Run(steps, None, example),
        "one shrink": Run(steps, 1, example),
        "three shrinks": Run(steps, 3, example),
    }
    for x, y in batches(root, batch, steps):
        for run in runs.values():
            run.step(x, y)
    plain = runs["plain"].seconds
    return {
        name: {
            "seconds": run.seconds,
            "of_plain": run.seconds / plain,
            "make_seconds": run.make_seconds,
            "in_budget_seconds": run.in_budget,
            "in_budget_of_plain": run.in_budget / plain,
            "macs": 1.0 if run.budget is None else run.budget.cost["macs"],
        }
        for name, run in runs.items()
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only-looks", action="store_true", help="keep the rest of the record")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    path = RESULTS / "budget_cost.json"
    record: dict[str, Any] = json.loads(path.read_text()) if options.only_looks and path.exists() else {}
    record |= {"kept_memory": keep_memory(), "threads": options.threads, "look": look_times()}
    for name, value in record["look"].items():
        print(f"look: {name} {value:.1f}")
    if options.only_looks:
        write_record("budget_cost", record)
        return
    record |= {"steps": options.steps, "batch": options.batch}
    record["training"] = training(options.data_root, options.steps, options.batch)
    for name, figures in record["training"].items():
        print(f"{name:<14} {figures['seconds']:.0f} s, {figures['of_plain']:.2f} of plain, {figures['macs']:.1%} MACs")
    write_record("budget_cost", record)


if __name__ == "__main__":
    main()
