"""`diffsparse demo` and `diffsparse demo traffic`: small networks trained side by side, and compared in a table."""

import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from diffsparse.checkpoint import load
from diffsparse.cli.tables import figures_table
from diffsparse.cli.train import TrainingBar
from diffsparse.data import open_data
from diffsparse.errors import SparsityError
from diffsparse.files import write_json
from diffsparse.measuring.meter import measure_in_turns
from diffsparse.training import Hardware, Optimisation, Recipe, Sparsifying, StoppedError, train
from diffsparse.training.build import build_model
from diffsparse.training.processes import threads
from diffsparse.training.run import COMPACT, TRAINED

LATENCY_BATCH = 64
"""Images per forward pass when the networks are timed."""
ONE_THREAD = Hardware(threads=1)
"""Tensors this small gain nothing from several threads, and lose much to them on a busy machine."""
METHODS = {"baseline-I": "given-map", "baseline-II": "plain", "ours": "ds"}
"""The runs of the traffic demo, which are also the rows of its table."""

Rows = dict[str, dict[str, Any]]


def run_demo(recipes: Mapping[str, Recipe], keep: Path | None, show: Callable[[Rows, Path, Console], Rows]) -> None:
    """Train by each recipe in a folder of its name and show the results; the folder `keep` must be new or empty."""
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise SparsityError(f"--output must be a new or empty folder, got {keep}")
    for recipe in recipes.values():
        # before the first network is trained
        recipe.check()
    console, results = Console(), {}
    with tempfile.TemporaryDirectory() if keep is None else nullcontext(keep) as place:
        folder = Path(place)
        with TrainingBar(console) as bar:
            for name, recipe in recipes.items():
                bar.title = name
                try:
                    results[name] = train(recipe, folder / name, watcher=bar)
                except StoppedError:
                    # a demo starts again, it is not resumed
                    raise KeyboardInterrupt from None
        rows = show(results, folder, console)
        if keep is not None:
            write_json(keep / "demo.json", rows)
            console.print(f"the runs and demo.json are in {keep}", markup=False, soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Train a small residual net on digits, plain and gated, make it compact and compare.

    `diffsparse demo traffic` learns a road map instead.
    """

    epochs: int = 30
    """Passes over the 1,348 training images, for each of the two nets."""
    strength: float = 0.02
    """Lambda of the l1 penalty on the gates. A short run needs a far larger one than a long run."""
    target: float | None = None
    """Share of zero channels to steer lambda to; by default lambda stays as it is."""
    model: str = "preresnet14"
    """Which network; a name of diffsparse.models.names()."""
    seed: int = 0
    """Seed of the weights and the order of images."""
    output: Path | None = None
    """Folder to keep both runs in; by default nothing is kept."""

    def run(self) -> None:
        """Train both nets, compact the gated one, print the table."""
        gates = Sparsifying(method="ds", strength=self.strength, target=self.target)
        recipes = {"plain": self._recipe(Sparsifying(method="plain")), "gated": self._recipe(gates)}
        run_demo(recipes, self.output, self._show)

    def _recipe(self, method: Sparsifying) -> Recipe:
        return Recipe(model=self.model, epochs=self.epochs, seed=self.seed, sparsifying=method, hardware=ONE_THREAD)

    def _show(self, results: Rows, folder: Path, console: Console) -> Rows:
        with console.status("timing the three networks"), threads(ONE_THREAD.threads):
            rows = _digits_rows(self._recipe(Sparsifying()), folder, results)
        cells = {
            name: {
                "accuracy": f"{row['accuracy']:.2%}",
                "zeros": f"{row['zeros']:.0%}" if name == "gated" else "-",
                "params": f"{row['cost']['params']:,}",
                "MACs": f"{row['cost']['macs'] // LATENCY_BATCH:,}",
                "file kB": f"{row['file_bytes'] / 1e3:.0f}",
                "latency ms": f"{1e3 * row['cost']['latency']['median']:.2f}",
            }
            for name, row in rows.items()
        }
        caption = f"MACs of one image; latency of {LATENCY_BATCH} images, median, 1 thread(s), in turns"
        console.print(figures_table("net", cells, title="Digits: plain, gated, compact", caption=caption))
        difference = results["gated"]["max_difference"]
        console.print(f"compact and gated outputs differ by at most {difference:.1g} of the largest output")
        return rows


def _digits_rows(recipe: Recipe, folder: Path, results: Rows) -> Rows:
    """Accuracy, costs and time of the three networks as they come from their files."""
    data = open_data(recipe.data)
    # the run, the file in its folder, and the figures of each network
    sources = {
        "plain": ("plain", TRAINED, "trained"),
        "gated": ("gated", TRAINED, "trained"),
        "compact": ("gated", COMPACT, "compact"),
    }
    models = [
        load(folder / run / file, build_model(recipe.model, recipe.arguments, data, recipe.seed))
        for run, file, _ in sources.values()
    ]
    images, _ = next(data.test.in_order(LATENCY_BATCH))
    return {
        name: {
            "accuracy": results[run]["figures"][figures]["accuracy"],
            "zeros": results[run]["zeros"]["fraction"] if name == "gated" else 0.0,
            "file_bytes": (folder / run / file).stat().st_size,
            "cost": cost.as_dict(),
        }
        for (name, (run, file, figures)), cost in zip(sources.items(), measure_in_turns(models, images), strict=True)
    }


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
        """Train the paper's two baselines and our network, print the table."""
        settings = (self.epochs, self.strength, self.seed)
        run_demo({name: traffic_recipe(m, *settings) for name, m in METHODS.items()}, self.output, _show_maps)


def traffic_recipe(method: str, epochs: int, strength: float, seed: int) -> Recipe:
    """The run of one row of the table."""
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
        sparsifying=sparsifying,
        hardware=ONE_THREAD,
    )


def _show_maps(results: Rows, _folder: Path, console: Console) -> Rows:
    rows = {name: result["figures"]["trained"] | result["graph"] for name, result in results.items()}
    ours = rows["ours"]
    entries = ours["entries"]
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
    title = "Made-up roads: forecasts of the next 15 minutes"
    caption = (
        "baseline I has the map, II reads every pair, ours learns which pairs to read\n"
        "LR: share of the weights that lies within k links on the map"
    )
    console.print(figures_table("network", cells, title=title, caption=caption))
    found = f"ours found {ours['links_found']} of the map's {ours['links']} links, each direction counted"
    console.print(f"{found}, among the {ours['nonzeros']:,} of {entries:,} entries that it kept", soft_wrap=True)
    return rows
