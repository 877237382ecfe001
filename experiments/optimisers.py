"""The README example with several optimisers: how many channels drop, and does the network still train?

Writes experiments/results/optimisers.json, which docs/strength.md quotes.
"""

import json
import platform
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import diffsparse as ds

RESULTS = Path(__file__).parent / "results" / "optimisers.json"

# optimiser, learning rate, steps, lambda
RUNS = [
    ("SGD, momentum 0.9", 0.1, 300, 0.01),
    ("SGD, momentum 0.9", 0.1, 300, 0.02),
    ("SGD", 0.1, 300, 0.01),
    ("SGD", 0.1, 300, 0.1),
    ("SGD", 1.0, 300, 0.001),
    ("SGD", 1.0, 300, 0.01),
    ("SGD", 0.1, 3000, 0.001),
    ("SGD", 0.1, 3000, 0.01),
    ("Adam", 0.001, 300, 0.01),
    ("Adam", 0.001, 300, 1.0),
    ("Adam", 0.001, 3000, 0.01),
    ("Adam", 0.01, 300, 0.001),
    ("Adam", 0.01, 300, 0.01),
    ("Adam", 0.01, 300, 0.1),
]
SEEDS = 3


def train(optimiser: str, rate: float, steps: int, strength: float, seed: int) -> tuple[int, float]:
    """The number of zero channels and the training accuracy of one run."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
    model = ds.sparsify(model, start=0.5)
    penalty = ds.Penalty(model, strength=strength)
    groups = ds.parameter_groups(model, weight_decay=1e-4)
    if optimiser == "Adam":
        steer: torch.optim.Optimizer = torch.optim.Adam(groups, lr=rate)
    else:
        steer = torch.optim.SGD(groups, lr=rate, momentum=0.9 if "momentum" in optimiser else 0.0)
    x = torch.randn(512, 20)
    y = (x[:, 0] * x[:, 1] > 0).long()
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), y) + penalty()
        steer.zero_grad()
        loss.backward()
        steer.step()
    with torch.no_grad():
        accuracy = (model.eval()(x).argmax(1) == y).float().mean().item()
    return ds.sparsity(model).channels.zero, accuracy


def rows() -> Iterator[dict[str, Any]]:
    """One row per setting, averaged over the seeds."""
    for optimiser, rate, steps, strength in RUNS:
        runs = [train(optimiser, rate, steps, strength, seed) for seed in range(SEEDS)]
        zeros, accuracy = (statistics.mean(values) for values in zip(*runs, strict=True))
        print(f"| {optimiser} | {rate:g} | {steps} | {strength:g} | {zeros:.0f} | {accuracy:.1%} |", flush=True)
        yield {
            "optimiser": optimiser,
            "learning_rate": rate,
            "steps": steps,
            "strength": strength,
            "zero_channels": zeros,
            "training_accuracy": accuracy,
        }


def main() -> None:
    torch.set_num_threads(1)
    record = {
        "experiment": "optimisers",
        "seeds": list(range(SEEDS)),
        "channels": 64,
        "versions": {
            "diffsparse": ds.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "rows": list(rows()),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
