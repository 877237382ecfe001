"""Does a latency budget land, and is it worth more than a MAC budget that happens to be as fast? On digits.

    python experiments/latency.py

Five networks, three seeds, half of the time, beside MAC budgets of several sizes. Writes
experiments/results/latency.json after each run; runs that are in it already are not repeated.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from comparison.digits import known_runs, steps_of, trained, write_runs
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.data import open_data
from diffsparse.measuring.latency import Share, shares_of_first

RESULTS = Path(__file__).parent / "results" / "latency.json"
NETWORKS = ("preresnet14", "preresnet20", "preresnet29", "densenet40", "mobilenetv1-0.25")
SEEDS, RATE = range(3), 0.1
LATENCY, MACS = 0.5, (0.1, 0.2, 0.35, 0.5, 0.7)
EXAMPLE = 32
"""Images in the batch that is timed."""


def measured(whole: nn.Module, model: nn.Module, x: Tensor) -> Share:
    """The time of a network as a share of the whole one's, timed for itself after the run."""
    calls = [lambda: whole(x), lambda: model(x)]
    with torch.no_grad():
        return shares_of_first(calls, device=x.device, seconds=2.0, most=10.0, error=0.005)[1]


def run(name: str, seed: int, limit: dict[str, float]) -> dict[str, Any]:
    """One training under `limit`, and what came of it."""
    data, began = open_data("digits"), time.perf_counter()
    example = next(data.test.in_order(EXAMPLE))[0]
    torch.manual_seed(seed)
    whole = ds.models.create(name, 10, in_channels=1).eval()
    torch.manual_seed(seed)
    model = ds.sparsify(ds.models.create(name, 10, in_channels=1), start=1.0)
    budget = ds.Budget(model, example, **limit, steps=steps_of(data))
    optimizer = torch.optim.SGD(ds.parameter_groups(model, weight_decay=1e-4), lr=RATE, momentum=0.9)
    accuracy = trained(model, optimizer, budget, data, seed)
    share = measured(whole, model, example)
    macs = budget.cost["macs"]
    found = {"network": name, "seed": seed, **limit, "accuracy": accuracy, "measured": share.median}
    return found | {
        "error": share.error,
        "landed": budget.cost.get("latency"),
        "macs_share": macs,
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    """Make the missing runs, write them, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="*", default=NETWORKS)
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--macs", nargs="*", type=float, default=list(MACS), help="MAC budgets to compare with")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = known_runs(RESULTS)
    done = {(one["network"], one["seed"], one.get("latency"), one.get("macs")) for one in runs}
    limits: list[dict[str, float]] = [{"latency": LATENCY}, *({"macs": share} for share in options.macs)]
    for name in options.networks:
        for limit in limits:
            for seed in options.seeds:
                if (name, seed, limit.get("latency"), limit.get("macs")) not in done:
                    runs.append(run(name, seed, limit))
                    print(runs[-1], flush=True)
                    write(runs)
    for row in write(runs):
        print(row)


def write(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write runs and table; returns the rows, one per network."""
    rows = []
    for name in dict.fromkeys(one["network"] for one in runs):
        ours = [one for one in runs if one["network"] == name and "latency" in one]
        others = [one for one in runs if one["network"] == name and "macs" in one]
        rows.append(
            {"network": name, "measured": [round(one["measured"], 4) for one in ours]} | _accuracies(ours, others)
        )
    write_runs(RESULTS, {"rate": RATE, "example": EXAMPLE, "latency": LATENCY}, rows, runs)
    return rows


def _accuracies(ours: list[dict[str, Any]], others: list[dict[str, Any]]) -> dict[str, float | None]:
    """Mean accuracy, and that of MAC budgets at the same latency, on lines between those that were run."""
    if not ours:
        return {"accuracy": None, "macs_at_same_latency": None}
    at = statistics.mean(one["measured"] for one in ours)
    by_budget = [[one for one in others if one["macs"] == share] for share in sorted({one["macs"] for one in others})]
    points = sorted(
        tuple(statistics.mean(one[key] for one in some) for key in ("measured", "accuracy")) for some in by_budget
    )
    same = float(np.interp(at, *zip(*points, strict=True))) if len(points) > 1 else None
    return {"accuracy": statistics.mean(one["accuracy"] for one in ours), "macs_at_same_latency": same}


if __name__ == "__main__":
    main()
