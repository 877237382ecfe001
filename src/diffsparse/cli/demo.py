"""`diffsparse demo`: a small residual net on digits, trained plain and with gates, made compact, and compared."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from diffsparse.checkpoint import load
from diffsparse.cli.tables import figures_table
from diffsparse.cli.train import TrainingBar
from diffsparse.data import open_data
from diffsparse.errors import SparsityError
from diffsparse.files import write_json
from diffsparse.measuring.meter import measure_in_turns
from diffsparse.training import Hardware, Recipe, Sparsifying, StoppedError, train
from diffsparse.training.build import build_model
from diffsparse.training.processes import threads
from diffsparse.training.run import COMPACT, TRAINED

LATENCY_BATCH = 64
"""Images per forward pass when the networks are timed."""
THREADS = 1
"""Tensors this small gain nothing from several threads, and lose much to them on a busy machine."""


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
        console = Console()
        gates = Sparsifying(method="ds", strength=self.strength, target=self.target)
        recipes = {"plain": self._recipe(Sparsifying(method="plain")), "gated": self._recipe(gates)}
        with demo_folder(self.output) as folder:
            results = train_all(recipes, folder, console)
            with console.status("timing the three networks"), threads(THREADS):
                rows = _rows(recipes["gated"], folder, results)
            console.print(_table(rows))
            difference = results["gated"]["max_difference"]
            console.print(f"compact and gated outputs differ by at most {difference:.1g} of the largest output")
            if self.output is not None:
                write_json(folder / "demo.json", rows)
                console.print(f"both runs and demo.json are in {folder}", markup=False, soft_wrap=True)

    def _recipe(self, method: Sparsifying) -> Recipe:
        hardware = Hardware(threads=THREADS)
        return Recipe(model=self.model, epochs=self.epochs, seed=self.seed, sparsifying=method, hardware=hardware)


@contextmanager
def demo_folder(keep: Path | None) -> Iterator[Path]:
    """The folder `keep`, which must be new or empty, or one that is gone afterwards."""
    if keep is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise SparsityError(f"--output must be a new or empty folder, got {keep}")
    yield keep


def train_all(recipes: Mapping[str, Recipe], folder: Path, console: Console) -> dict[str, dict[str, Any]]:
    """Train by each recipe in a folder of its name within `folder`, under one bar; returns the results by name."""
    for recipe in recipes.values():
        # before the first network is trained
        recipe.check()
    results = {}
    with TrainingBar(console) as bar:
        for name, recipe in recipes.items():
            bar.title = name
            try:
                results[name] = train(recipe, folder / name, watcher=bar)
            except StoppedError:
                # a demo starts again, it is not resumed
                raise KeyboardInterrupt from None
    return results


def _rows(recipe: Recipe, folder: Path, results: dict[str, Any]) -> dict[str, dict[str, Any]]:
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
    costs = measure_in_turns(models, images)
    return {
        name: {
            "accuracy": results[run]["figures"][figures]["accuracy"],
            "zeros": results[run]["zeros"]["fraction"] if name == "gated" else 0.0,
            "file_bytes": (folder / run / file).stat().st_size,
            "cost": cost.as_dict(),
        }
        for (name, (run, file, figures)), cost in zip(sources.items(), costs, strict=True)
    }


def _table(rows: dict[str, dict[str, Any]]) -> Table:
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
    caption = f"MACs of one image; latency of {LATENCY_BATCH} images, median, {THREADS} thread(s), in turns"
    return figures_table("net", cells, title="Digits: plain, gated, compact", caption=caption)
