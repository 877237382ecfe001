"""`diffsparse demo traffic`: a road map learned from speeds alone, beside the paper's two baselines."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from diffsparse.cli.demo_runs import demo_folder, train_all
from diffsparse.files import write_json
from diffsparse.training import Hardware, Optimisation, Recipe, Sparsifying

METHODS = {"baseline-I": "given-map", "baseline-II": "plain", "ours": "ds"}
"""The rows of the table, which are also the folders of the runs."""


@dataclass(frozen=True, kw_only=True)
class TrafficDemo:
    """Learn a sparse road map from made-up traffic and compare it with the true one."""

    epochs: int = 60
    """Passes over the training windows, for each of the three networks."""
    strength: float = 2e-5
    """Lambda of the penalty on the entries of the learned graph; more leaves fewer."""
    seed: int = 0
    """Seed of the weights and the order of windows."""
    output: Path | None = None
    """Folder to keep the three runs in, with their graphs and pictures; by default nothing is kept."""


def traffic_recipe(method: str, epochs: int, strength: float, seed: int) -> Recipe:
    """The run of one row of the table."""
    return Recipe(
        model="traffic-gcn",
        arguments=json.dumps({"width": 32}),
        data="synthetic-roads",
        epochs=epochs,
        batch_size=32,
        seed=seed,
        # gates have the larger rate: every entry of n nodes starts at 1/n and has far to go
        optimisation=Optimisation(
            optimizer="adam",
            learning_rate=2e-3,
            gate_rate=5.0,
            weight_decay=0.0,
            schedule="steps",
            milestones=(0.8, 0.9),
            factor=0.5,
        ),
        sparsifying=Sparsifying(
            method=method,
            norm="lp" if method == "ds" else "l1",
            strength=strength if method == "ds" else 0.0,
            # an entry must have shown its worth before lambda asks for it
            delay_epochs=0.1 * epochs if method == "ds" else 0.0,
        ),
        # matrices this small gain nothing from several threads
        hardware=Hardware(threads=1),
    )


def run_traffic_demo(config: TrafficDemo) -> None:
    """Train the three networks, print the table."""
    console = Console()
    with demo_folder(config.output) as folder:
        recipes = {
            name: traffic_recipe(method, config.epochs, config.strength, config.seed)
            for name, method in METHODS.items()
        }
        results = train_all(recipes, folder, console)
        rows = {name: result["figures"]["trained"] | result["graph"] for name, result in results.items()}
        console.print(_table(rows))
        console.print(_found(rows["ours"]), soft_wrap=True)
        if config.output is not None:
            write_json(folder / "demo.json", rows)
            console.print(f"the three runs and demo.json are in {folder}", markup=False, soft_wrap=True)


def _table(rows: dict[str, dict[str, Any]]) -> Table:
    entries = rows["ours"]["entries"]
    table = Table(
        title="Made-up roads: forecasts of the next 15 minutes",
        caption="baseline I has the map, II reads every pair, ours learns which pairs to read\n"
        "LR: share of the weights that lies within k links on the map",
    )
    table.add_column("network")
    for heading in (f"non-zeros of {entries:,}", "MAPE", "MAE km/h", "LR k=1", "LR k=2"):
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        table.add_row(
            name.replace("-", " "),
            f"{row['nonzeros']:,} ({row['nonzeros'] / entries:.1%})",
            f"{row['mape']:.2f}%",
            f"{row['mae']:.3f}",
            f"{row['lr1']:.1%}",
            f"{row['lr2']:.1%}",
        )
    return table


def _found(row: dict[str, Any]) -> str:
    return (
        f"ours found {row['links_found']} of the map's {row['links']} links, each direction counted, "
        f"among the {row['nonzeros']:,} of {row['entries']:,} entries that it kept"
    )
