"""The command: which runs are missing, and their records."""

import argparse
import json
import platform
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import diffsparse as ds
from experiments.transformer_runs.cuts import by_torch_pruning, readers
from experiments.transformer_runs.loop import tested
from experiments.transformer_runs.rows import Bench, Cut, Ours, Row, Uniform, plain, plain_longer
from experiments.transformer_runs.summary import read_runs, summarise
from experiments.transformer_runs.tasks import TASKS

TENTH = 0.3
"""A tenth of the steps of a plain run, as a share of those from the trained network."""
ROWS: dict[str, Row] = {
    "plain": plain,
    "plain, trained on": plain_longer,
    "ours, from scratch": Ours(trained=False),
    "ours, from trained": Ours(trained=True),
    "magnitude, from trained": Cut(),
    "torch-pruning, from trained": Cut(cut=by_torch_pruning),
    "uniform, from scratch": Uniform(),
    "uniform, equal total cost": Uniform(equal_cost=True),
    "ours, a tenth of the steps": Ours(trained=True, share=TENTH),
    "ours, a tenth of the steps, distilled": Ours(trained=True, share=TENTH, distilled=True),
    "magnitude, a tenth of the steps": Cut(TENTH),
    "magnitude, a tenth of the steps, distilled": Cut(TENTH, distilled=True),
}
WHOLE = ("plain", "plain, trained on")
"""Rows without a budget."""
IMPOSSIBLE = {("shakespeare", "torch-pruning, from trained")}
"""Torch-Pruning does not know the layers of GPT-2."""


def main(words: str) -> None:
    """Make the missing runs."""
    parser = argparse.ArgumentParser(description=words.splitlines()[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=ROWS)
    parser.add_argument("--budgets", nargs="*", type=float, default=[0.5, 0.3])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--summary", action="store_true", help="write the results of the runs there are")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ds.SparsityWarning)
    folder = options.runs / f"transformers-{options.task}"
    if options.summary:
        summarise(options.task, folder)
        return
    bench = Bench(options.task, options.data_root, folder)
    known = {(run["row"], run["budget"], run["seed"]) for run in read_runs(options.task, folder)}
    for seed in options.seeds:
        for row in options.rows:
            for budget in [1.0] if row in WHOLE else options.budgets:
                if (row, budget, seed) not in known and (options.task, row) not in IMPOSSIBLE:
                    _make(bench, row, budget, seed)


def _make(bench: Bench, row: str, budget: float, seed: int) -> None:
    training, notes = ROWS[row](bench, budget, seed)
    model = training.model.eval()
    cost = ds.measure(model, bench.example, latency=False)
    record = {
        "task": bench.name,
        "row": row,
        "budget": budget,
        "seed": seed,
        **tested(model, bench.data),
        "macs": cost.macs / bench.whole.macs,
        "params": cost.params / bench.whole.params,
        "steps": training.steps,
        "seconds": training.seconds,
        "left": _left(model),
        "config": {"rate": training.rate, "gate_rate": training.gate_rate, "row": repr(ROWS[row])},
        "versions": {"torch": torch.__version__, "python": platform.python_version(), "diffsparse": ds.__version__},
        **notes,
    }
    name = f"{row.replace(', ', '-').replace(' ', '_')}-{budget:g}-{seed}"
    _write(bench.folder / f"{name}.json", record)
    figure = record[bench.task.figure]
    print(f"{row} {budget:g} seed {seed}: {figure:.4f} at {record['macs']:.1%}, {training.seconds:.0f} s", flush=True)


def _left(model: nn.Module) -> dict[str, int]:
    """Heads and neurons of every layer that are left; a layer that is gone is not named."""
    return {reader.name: len(reader.scores) for reader in readers(model)}


def _write(path: Path, content: Any) -> None:
    path.with_suffix(".new").write_text(json.dumps(content, indent=1) + "\n")
    path.with_suffix(".new").replace(path)
