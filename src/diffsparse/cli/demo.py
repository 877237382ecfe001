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
from diffsparse.cli.tables import figures_table, widths_table
from diffsparse.cli.train import TrainingBar
from diffsparse.data import open_data
from diffsparse.errors import SparsityError
from diffsparse.files import write_json
from diffsparse.measuring.meter import measure_in_turns
from diffsparse.module_tree import layer_widths
from diffsparse.plot import widths as draw_widths
from diffsparse.plot.picture import save_formats
from diffsparse.training import Hardware, Optimisation, Recipe, Sparsifying, StoppedError, train
from diffsparse.training.build import build_model
from diffsparse.training.processes import threads
from diffsparse.training.report import cost_cells
from diffsparse.training.run import COMPACT

LATENCY_BATCH = 64
"""Images per forward pass when the networks are timed."""
ONE_THREAD = Hardware(threads=1)
"""Tensors this small gain nothing from several threads, and lose much to them on a busy machine."""
METHODS = {"baseline-I": "given-map", "baseline-II": "plain", "ours": "ds"}
"""The runs of the traffic demo, which are also the rows of its table."""
WHY_NOT_FASTER = (
    "Why MACs are not time here: the layers of this net are tiny. Calling a layer, adding to the residual stream and "
    "filling vectors of 16 numbers take as long with fewer channels. Wider nets turn more of the saved MACs into time: "
    "see docs/benchmarks.md."
)
WHY_THE_DIP = (
    "Why the test accuracy dips on the way: when channels close, running statistics of batch norms are those of "
    "before for some dozen steps. The training loss does not see that, and in the second half nothing closes any more."
)

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
    """Train a small residual net on digits, whole and with two budgets, and compare.

    `diffsparse demo traffic` learns a road map instead.
    """

    epochs: int = 20
    """Passes over the 1,348 training images, for each net."""
    macs: tuple[float, ...] = (0.5, 0.25)
    """Budgets: what a net may cost, as a share of the MACs of the whole one."""
    model: str = "preresnet14"
    """Which network; a name of diffsparse.models.names()."""
    seed: int = 0
    """Seed of the weights and the order of images."""
    output: Path | None = None
    """Folder to keep the runs in, with a picture of the widths; by default nothing is kept."""

    def run(self) -> None:
        """Train the nets, print the table and the widths of all layers."""
        if not self.macs or len(set(self.macs)) < len(self.macs):
            raise SparsityError(f"--macs needs one or more different budgets, got {list(self.macs)}")
        recipes = {"plain": self._recipe(Sparsifying(method="plain"))}
        recipes |= {f"macs-{share:g}": self._recipe(Sparsifying(macs=share)) for share in self.macs}
        run_demo(recipes, self.output, self._show)

    def _recipe(self, method: Sparsifying) -> Recipe:
        return Recipe(model=self.model, epochs=self.epochs, seed=self.seed, sparsifying=method, hardware=ONE_THREAD)

    def _show(self, results: Rows, folder: Path, console: Console) -> Rows:
        recipe = self._recipe(Sparsifying())
        data = open_data(recipe.data)
        nets = {
            name: load(folder / name / COMPACT, build_model(recipe.model, recipe.arguments, data, recipe.seed))
            for name in results
        }
        with console.status("timing the networks"), threads(ONE_THREAD.threads):
            images, _ = next(data.test.in_order(LATENCY_BATCH))
            costs = measure_in_turns(list(nets.values()), images)
        rows = {
            name: {
                "accuracy": results[name]["figures"]["compact"]["accuracy"],
                "file_bytes": results[name]["cost"]["compact"]["file_bytes"],
                "training_seconds": sum(results[name]["training_seconds"].values()),
                "cost": cost.as_dict(),
                "widths": layer_widths(nets[name]),
            }
            for name, cost in zip(results, costs, strict=True)
        }
        caption = f"MACs of one image; latency of {LATENCY_BATCH} images, median, 1 thread, in turns"
        table = {name: _digits_cells(row, rows["plain"]) for name, row in rows.items()}
        console.print(figures_table("net", table, title="Digits: the whole network, and budgets", caption=caption))
        for name in list(rows)[1:]:
            console.print(speed_words(name, rows[name], rows["plain"]), markup=False, highlight=False, soft_wrap=True)
        for words in (WHY_NOT_FASTER, WHY_THE_DIP):
            console.print(words, style="dim", markup=False, highlight=False)
        widths = {name: row["widths"] for name, row in rows.items()}
        console.print(widths_table(widths))
        if self.output is not None:
            _draw(widths, folder, console)
        return rows


def speed_words(name: str, row: dict[str, Any], plain: dict[str, Any]) -> str:
    """The share of the MACs that is left, beside the share of the time."""
    cost, whole = row["cost"], plain["cost"]
    share = cost["macs"] / whole["macs"]
    time = cost["latency"]["median"] / whole["latency"]["median"]
    return f"{name}: {share:.0%} of the MACs, {time:.0%} of the time"


def _digits_cells(row: dict[str, Any], plain: dict[str, Any]) -> dict[str, str]:
    cost, whole = row["cost"], plain["cost"]
    return {
        "accuracy": f"{row['accuracy']:.2%}",
        **cost_cells(cost | {"macs": cost["macs"] // LATENCY_BATCH}, whole | {"macs": whole["macs"] // LATENCY_BATCH}),
        "file kB": f"{row['file_bytes'] / 1e3:.0f}",
        "latency ms": f"{1e3 * cost['latency']['median']:.2f}",
        "train s": f"{row['training_seconds']:.0f}",
    }


def _draw(widths: dict[str, dict[str, int]], folder: Path, console: Console) -> None:
    try:
        save_formats(draw_widths(widths), folder, "widths")
    except SparsityError as error:
        console.print(f"no picture of the widths: {error}", markup=False, soft_wrap=True)


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
