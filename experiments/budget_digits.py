"""Does a budget land, whatever the optimiser? SGD and AdamW, four budgets, five seeds, on digits, and no lambda given.

    python experiments/budget_digits.py

Writes experiments/results/budget-digits.json; runs that are in it already are not repeated.
"""

import statistics
from pathlib import Path
from typing import Any

import torch
from comparison.digits import known_runs, steps_of, trained, write_runs

import diffsparse as ds
from diffsparse.data import open_data

RESULTS = Path(__file__).parent / "results" / "budget-digits.json"
MODEL = "preresnet14"
BUDGETS, SEEDS = (0.2, 0.35, 0.5, 0.8), range(5)
RATES = {"sgd": 0.1, "adamw": 2e-3}


def run(kind: str, share: float, seed: int) -> dict[str, Any]:
    """One training; a share of 1 is the plain network."""
    data = open_data("digits")
    torch.manual_seed(seed)
    model = ds.models.create(MODEL, 10, in_channels=1)
    example = next(data.test.in_order(2))[0]
    budget = None
    if share < 1:
        model = ds.sparsify(model, start=1.0)
        budget = ds.Budget(model, example, macs=share, steps=steps_of(data))
    groups = ds.parameter_groups(model, weight_decay=1e-4)
    make = {"sgd": lambda: torch.optim.SGD(groups, lr=RATES["sgd"], momentum=0.9),
            "adamw": lambda: torch.optim.AdamW(groups, lr=RATES["adamw"])}[kind]  # fmt: skip
    accuracy = trained(model, make(), budget, data, seed)
    landed = None if budget is None else budget.cost["macs"] / share
    return {
        "optimizer": kind,
        "budget": share,
        "seed": seed,
        "accuracy": accuracy,
        "landed": landed,
    }


def main() -> None:
    """Make the missing runs, write them, print the table."""
    torch.set_num_threads(1)
    runs = known_runs(RESULTS)
    done = {(one["optimizer"], one["budget"], one["seed"]) for one in runs}
    for kind in RATES:
        for share in (1.0, *BUDGETS):
            for seed in SEEDS:
                if (kind, share, seed) not in done:
                    runs.append(run(kind, share, seed))
                    print(runs[-1], flush=True)
                    write(runs)
    for row in write(runs):
        print(row)


def write(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write runs and table; returns the rows."""
    groups: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for one in runs:
        groups.setdefault((one["optimizer"], one["budget"]), []).append(one)
    rows = [
        {
            "optimizer": kind,
            "budget": share,
            "accuracy": statistics.mean(one["accuracy"] for one in members),
            "lowest": min(one["accuracy"] for one in members),
            "landed": None if share == 1 else [round(one["landed"], 4) for one in members],
        }
        for (kind, share), members in groups.items()
    ]
    write_runs(RESULTS, {"model": MODEL, "rates": RATES, "start": 1.0}, rows, runs)
    return rows


if __name__ == "__main__":
    main()
