"""The paper's traffic table: the size of a learned graph, its forecast errors, and how much of it lies on the map.

    python experiments/traffic.py los-loop --data-root DIR

Baseline I is given the map, II reads every pair of nodes, ours learns a sparse graph at several strengths. There are
five runs of each (three on the synthetic roads). Each run counts with its best epoch on the validation part, and the
table shows the run with the median test error. Writes experiments/results/traffic-DATA.json, which docs/graphs.md
quotes. Finished runs are not repeated.
"""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from diffsparse.cli.demo import traffic_recipe
from diffsparse.cli.train import TrainingBar
from diffsparse.training import Recipe, train

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True)
class Size:
    """How long the networks train on a data set."""

    epochs: int
    batch_size: int
    """Smaller for small data, because the number of steps is what matters."""
    delay_epochs: int
    """Epochs before lambda acts on ours, so that entries can prove useful first."""
    strengths: tuple[float, ...]
    seeds: int = 5


# A small lambda and many steps: a larger one drops entries before their gradients can tell which ones matter.
SIZES = {
    "synthetic-roads": Size(epochs=300, batch_size=32, delay_epochs=30, strengths=(6e-6, 1.2e-5), seeds=3),
    "los-loop": Size(epochs=60, batch_size=16, delay_epochs=15, strengths=(1e-6, 2e-6, 4e-6, 8e-6)),
    "sz-taxi-40": Size(epochs=30, batch_size=32, delay_epochs=8, strengths=(1e-5, 3e-5, 6e-5)),
}


def recipe(data: str, root: Path | None, method: str, strength: float, seed: int) -> Recipe:
    """One run."""
    size = SIZES[data]
    made = traffic_recipe(method, size.epochs, strength, seed)
    delay = size.delay_epochs if method == "ds" else 0
    return replace(
        made,
        data=data,
        data_root=root,
        batch_size=size.batch_size,
        sparsifying=replace(made.sparsifying, delay_epochs=delay),
    )


def median_run(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The run whose test error is the median."""
    return sorted(results, key=lambda result: result["figures"]["trained"]["mape"])[len(results) // 2]


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """The row of a run in the table, and the results of its last epoch, which need not be the best one."""
    last = {key: result["last"][f"test_{key}"] for key in ("mape", "mae", "rmse")} | {"zeros": result["last"]["zeros"]}
    return result["figures"]["trained"] | result["graph"] | {"seed": result["config"]["seed"], "last_epoch": last}


def finished(folder: Path) -> dict[str, Any]:
    """The result of a run, and the last line of its log as "last"."""
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result | {"last": json.loads((folder / "log.jsonl").read_text().splitlines()[-1])}


def main() -> None:
    """Make the missing runs, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", choices=SIZES)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    options = parser.parse_args()
    console = Console()
    rows = [("baseline I", "given-map", 0.0), ("baseline II", "plain", 0.0)]
    rows += [(f"ours, {strength:g}", "ds", strength) for strength in SIZES[options.data].strengths]
    table = Table("", "non-zeros", "MAPE %", "MAE", "RMSE", "LR k=1", "LR k=2", title=options.data)
    written: dict[str, Any] = {}
    with TrainingBar(console) as bar:
        for name, method, strength in rows:
            results = []
            for seed in range(SIZES[options.data].seeds):
                folder = options.runs / f"traffic-{options.data}-{method}-{strength:g}-{seed}"
                if not (folder / "result.json").exists():
                    bar.title = f"{name} {seed}"
                    wanted = recipe(options.data, options.data_root, method, strength, seed)
                    train(wanted, folder, resume=folder.exists(), watcher=bar)
                results.append(finished(folder))
            middle = summary(median_run(results))
            written[name] = {
                "median": middle,
                "runs": [summary(result) for result in results],
                "config": results[0]["config"] | {"data_root": None},
                "environment": results[0]["environment"],
                "seconds": [sum(result["training_seconds"].values()) for result in results],
            }
            table.add_row(
                name, f"{middle['nonzeros']} ({middle['nonzeros'] / middle['entries']:.1%})", f"{middle['mape']:.3f}",
                f"{middle['mae']:.3f}", f"{middle['rmse']:.3f}", f"{middle['lr1']:.3f}", f"{middle['lr2']:.3f}",
            )  # fmt: skip
    console.print(table)
    path = RESULTS / f"traffic-{options.data}.json"
    path.write_text(json.dumps(written, indent=2) + "\n")
    console.print(f"results in {path}")


if __name__ == "__main__":
    main()
