"""`diffsparse demo traffic`: a road map learned from speeds alone, beside the paper's two baselines."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from diffsparse.cli.demo import demo_folder, train_all
from diffsparse.cli.tables import figures_table
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

    def run(self) -> None:
        """Train the three networks, print the table."""
        console = Console()
        recipes = {
            name: traffic_recipe(method, self.epochs, self.strength, self.seed) for name, method in METHODS.items()
        }
        with demo_folder(self.output) as folder:
            results = train_all(recipes, folder, console)
            rows = {name: result["figures"]["trained"] | result["graph"] for name, result in results.items()}
            console.print(_table(rows))
            ours = rows["ours"]
            console.print(
                f"ours found {ours['links_found']} of the map's {ours['links']} links, each direction counted, "
                f"among the {ours['nonzeros']:,} of {ours['entries']:,} entries that it kept",
                soft_wrap=True,
            )
            if self.output is not None:
                write_json(folder / "demo.json", rows)
                console.print(f"the three runs and demo.json are in {folder}", markup=False, soft_wrap=True)


def traffic_recipe(method: str, epochs: int, strength: float, seed: int) -> Recipe:
    """The run of one row of the table."""
    # gates have the larger rate: every entry of n nodes starts at 1/n and has far to go
    optimisation = Optimisation(
        optimizer="adam",
        learning_rate=2e-3,
        gate_rate=5.0,
        weight_decay=0.0,
        schedule="steps",
        milestones=(0.8, 0.9),
        factor=0.5,
    )
    sparsifying = Sparsifying(method=method, strength=0.0)
    if method == "ds":
        # an entry gets time to prove useful before lambda acts on it
        sparsifying = Sparsifying(method=method, norm="lp", strength=strength, delay_epochs=0.1 * epochs)
    return Recipe(
        model="traffic-gcn",
        arguments=json.dumps({"width": 32}),
        data="synthetic-roads",
        epochs=epochs,
        batch_size=32,
        seed=seed,
        optimisation=optimisation,
        sparsifying=sparsifying,
        # matrices this small gain nothing from several threads
        hardware=Hardware(threads=1),
    )


def _table(rows: dict[str, dict[str, Any]]) -> Table:
    entries = rows["ours"]["entries"]
    cells = {
        name.replace("-", " "): {
            f"non-zeros of {entries:,}": f"{row['nonzeros']:,} ({row['nonzeros'] / entries:.1%})",
            "MAPE": f"{row['mape']:.2f}%",
            "MAE km/h": f"{row['mae']:.3f}",
            "LR k=1": f"{row['lr1']:.1%}",
            "LR k=2": f"{row['lr2']:.1%}",
        }
        for name, row in rows.items()
    }
    caption = (
        "baseline I has the map, II reads every pair, ours learns which pairs to read\n"
        "LR: share of the weights that lies within k links on the map"
    )
    return figures_table("network", cells, title="Made-up roads: forecasts of the next 15 minutes", caption=caption)
