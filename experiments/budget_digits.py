"""Does a budget land, whatever the optimiser? SGD and AdamW, four budgets, five seeds, on digits, and no lambda given.

    python experiments/budget_digits.py

Writes experiments/results/budget-digits.json; runs that are in it already are not repeated.
"""

import json
import platform
import statistics
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR

import diffsparse as ds
from diffsparse.data import open_data

RESULTS = Path(__file__).parent / "results" / "budget-digits.json"
MODEL, EPOCHS, BATCH = "preresnet14", 15, 64
BUDGETS, SEEDS = (0.2, 0.35, 0.5, 0.8), range(5)
RATES = {"sgd": 0.1, "adamw": 2e-3}


def run(kind: str, share: float, seed: int) -> dict[str, Any]:
    """One training; a share of 1 is the plain network."""
    data = open_data("digits")
    steps = len(data.train) // BATCH * EPOCHS
    torch.manual_seed(seed)
    model = ds.models.create(MODEL, 10, in_channels=1)
    example = next(data.test.in_order(2))[0]
    budget = None
    if share < 1:
        model = ds.sparsify(model, start=1.0)
        budget = ds.Budget(model, example, macs=share, steps=steps)
    groups = ds.parameter_groups(model)
    make = {"sgd": lambda: torch.optim.SGD(groups, lr=RATES["sgd"], momentum=0.9),
            "adamw": lambda: torch.optim.AdamW(groups, lr=RATES["adamw"])}[kind]  # fmt: skip
    optimizer = make()
    schedule = CosineAnnealingLR(optimizer, steps)
    for epoch in range(EPOCHS):
        for x, y in data.train.shuffled(BATCH, seed=seed, epoch=epoch):
            loss = F.cross_entropy(model(x), y)
            if budget is not None:
                loss = loss + budget.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if budget is not None:
                budget.step(optimizer)
    model.eval()
    with torch.no_grad():
        right = [(model(x).argmax(1) == y).float() for x, y in data.test.in_order(256)]
    landed = None if budget is None else budget.cost["macs"] / share
    return {
        "optimizer": kind,
        "budget": share,
        "seed": seed,
        "accuracy": torch.cat(right).mean().item(),
        "landed": landed,
    }


def main() -> None:
    """Make the missing runs, write them, print the table."""
    torch.set_num_threads(1)
    runs = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else []
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
    config = {"model": MODEL, "epochs": EPOCHS, "batch": BATCH, "rates": RATES, "start": 1.0}
    versions = {"torch": torch.__version__, "python": platform.python_version(), "diffsparse": ds.__version__}
    RESULTS.write_text(
        json.dumps({"config": config, "versions": versions, "rows": rows, "runs": runs}, indent=1) + "\n"
    )
    return rows


if __name__ == "__main__":
    main()
