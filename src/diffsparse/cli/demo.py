"""`diffsparse demo`: a small residual net on digits, trained plain and with gates, made compact, and compared."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import nn

from diffsparse.checkpoint import load
from diffsparse.cli.demo_runs import demo_folder, train_all
from diffsparse.data import open_data
from diffsparse.files import write_json
from diffsparse.measuring import Measurement
from diffsparse.measuring.meter import measure_in_turns
from diffsparse.training import Hardware, Recipe, Sparsifying
from diffsparse.training.build import build_model
from diffsparse.training.processes import threads
from diffsparse.training.run import COMPACT, TRAINED

LATENCY_BATCH = 64
"""Images a forward pass when the networks are timed."""
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


def run_demo(config: Demo) -> None:
    """Train both nets, compact the gated one, print the table."""
    console = Console()
    with demo_folder(config.output) as folder:
        recipes = {name: _recipe(config, name) for name in ("plain", "gated")}
        results = train_all(recipes, folder, console)
        with console.status("timing the three networks"), threads(THREADS):
            rows = _rows(recipes["gated"], folder, results)
        console.print(_table(rows))
        difference = results["gated"]["max_difference"]
        console.print(f"compact and gated outputs differ by at most {difference:.1g} of the largest output")
        if config.output is not None:
            write_json(folder / "demo.json", {name: _plain_data(row) for name, row in rows.items()})
            console.print(f"both runs and demo.json are in {folder}", markup=False, soft_wrap=True)


def _recipe(config: Demo, name: str) -> Recipe:
    if name == "plain":
        method = Sparsifying(method="plain")
    else:
        method = Sparsifying(method="ds", strength=config.strength, target=config.target)
    hardware = Hardware(threads=THREADS)
    return Recipe(model=config.model, epochs=config.epochs, seed=config.seed, sparsifying=method, hardware=hardware)


@dataclass(frozen=True, kw_only=True)
class _Row:
    accuracy: float
    zeros: float
    file_bytes: int
    cost: Measurement


def _rows(recipe: Recipe, folder: Path, results: dict[str, Any]) -> dict[str, _Row]:
    """Accuracy, costs and time of the three networks as they come from their files."""
    data = open_data(recipe.data)
    files = {
        "plain": folder / "plain" / TRAINED,
        "gated": folder / "gated" / TRAINED,
        "compact": folder / "gated" / COMPACT,
    }
    models: dict[str, nn.Module] = {
        name: load(path, build_model(recipe.model, recipe.arguments, data, recipe.seed)) for name, path in files.items()
    }
    images, _ = next(data.test.in_order(LATENCY_BATCH))
    costs = dict(zip(models, measure_in_turns(list(models.values()), images), strict=True))
    rows = {}
    for name, path in files.items():
        result = results["plain" if name == "plain" else "gated"]
        figures = result["figures"]["compact" if name == "compact" else "trained"]
        zeros = result["zeros"]["fraction"] if name == "gated" else 0.0
        rows[name] = _Row(accuracy=figures["accuracy"], zeros=zeros, file_bytes=path.stat().st_size, cost=costs[name])
    return rows


def _table(rows: dict[str, _Row]) -> Table:
    one = next(iter(rows.values())).cost
    table = Table(
        title="Digits: plain, gated, compact",
        caption=f"MACs of one image; latency of {LATENCY_BATCH} images, median, {one.threads} thread(s), in turns",
    )
    table.add_column("net")
    for heading in ("accuracy", "zeros", "params", "MACs", "file kB", "latency ms"):
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        assert row.cost.latency is not None
        table.add_row(
            name,
            f"{row.accuracy:.2%}",
            f"{row.zeros:.0%}" if name == "gated" else "-",
            f"{row.cost.params:,}",
            f"{row.cost.macs // LATENCY_BATCH:,}",
            f"{row.file_bytes / 1e3:.0f}",
            f"{1e3 * row.cost.latency.median:.2f}",
        )
    return table


def _plain_data(row: _Row) -> dict[str, Any]:
    return dataclasses.asdict(row) | {"cost": row.cost.as_dict()}
