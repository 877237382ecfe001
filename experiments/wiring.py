"""Which rule finds the better wiring: chance, the largest edges, proximal steps or learned thresholds.

    python experiments/wiring.py cifar10 --data-root DIR

Every rule trains the same wired network for the same epochs, to the same Mult-Adds: those of a graph that has all its
nodes and a fifth of its edges, within 5 %. Counted is the part of the graph that the output depends on (the recursive
convention). Rules that count edges get there by their share of zero edges, the others by their strength: where a run
lands elsewhere, it is repeated with what the runs before suggest. Two seeds each. Writes
experiments/results/wiring-DATA.json with every run that was made. A finished run is not repeated.
"""

import argparse
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from diffsparse.cli.training_bar import TrainingBar
from diffsparse.models import create
from diffsparse.train import Hardware, Optimisation, Recipe, Sparsifying, run
from diffsparse.train.learned_wiring import wiring_figures
from diffsparse.wiring import WiringGraph, wiring_cost, wiring_graph

RESULTS = Path(__file__).parent / "results"
SEEDS = 2
TARGET = 0.8
NEAR = 0.05
TRIES = 4


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large the comparison is on a data set."""

    model: str
    epochs: int
    batch_size: int
    image: int
    strengths: dict[str, float]
    """Where the search for lambda begins."""


SIZES = {
    "cifar10": Size(
        model="wired-mobilenet-0.125", epochs=2, batch_size=128, image=32,
        strengths={"proximal l1": 0.01, "ours": 2.5e-3, "ours, rgf": 3e-3},
    ),
    "digits": Size(
        model="wired-mobilenet-0.25-small", epochs=6, batch_size=64, image=8,
        strengths={"proximal l1": 0.05, "ours": 0.01, "ours, rgf": 0.01},
    ),
}  # fmt: skip
ROWS: dict[str, dict[str, Any]] = {
    "random": {"method": "random"},
    "dnw, no update": {"method": "dnw-no-update"},
    "dnw": {"method": "dnw"},
    "proximal l1": {"method": "proximal-l1"},
    "ours": {"method": "ds"},
    "ours, rgf": {"method": "ds", "rgf": 0.1},
}


@dataclass(frozen=True)
class Goal:
    """The Mult-Adds to reach."""

    nodes: int
    """Of the complete graph without its edges."""
    edges: int
    """Of all usable edges."""

    @property
    def mult_adds(self) -> float:
        """Of a graph with all nodes and without the share `TARGET` of its edges."""
        return self.nodes + (1 - TARGET) * self.edges

    def reached(self, mult_adds: int) -> bool:
        """Whether that is near enough."""
        return abs(mult_adds / self.mult_adds - 1) <= NEAR


def goal(size: Size, in_channels: int) -> Goal:
    """What the network of `size` is to cost."""
    graph: WiringGraph = wiring_graph(create(size.model, num_classes=10, in_channels=in_channels))
    complete = wiring_figures(graph, size.image)["complete"]["mult_adds"]
    none = wiring_cost(graph, size.image, edges=[0.0] * len(graph.stages)).mult_adds
    return Goal(nodes=none, edges=complete - none)


def next_target(tries: list[tuple[float, int]], wanted: Goal) -> float:
    """The share of zero edges after runs with a share and the Mult-Adds reached: each edge costs what it costs."""
    share, reached = tries[-1]
    return share + (reached - wanted.mult_adds) / wanted.edges


def next_strength(tries: list[tuple[float, int]], wanted: Goal) -> float:
    """Lambda after runs with a lambda and the Mult-Adds reached.

    Between the two nearest runs on both sides of the goal, by logarithms; where all are on one side, further out.
    """
    points = [(math.log(strength), math.log(reached / wanted.mult_adds)) for strength, reached in tries]
    over, under = [p for p in points if p[1] > 0], [p for p in points if p[1] <= 0]
    if over and under:
        (x1, y1), (x2, y2) = min(over, key=lambda p: p[1]), max(under, key=lambda p: p[1])
        return math.exp(x1 + (x2 - x1) * y1 / (y1 - y2))
    x, y = min(points, key=lambda p: abs(p[1]))
    return math.exp(x + min(max(1.5 * y, -1.0), 1.0))


def recipe(data: str, root: Path | None, name: str, knob: float, seed: int) -> Recipe:
    """One run."""
    size = SIZES[data]
    key = "strength" if name in size.strengths else "target"
    return Recipe(
        model=size.model,
        data=data,
        data_root=root,
        epochs=size.epochs,
        batch_size=size.batch_size,
        seed=seed,
        optimisation=Optimisation(learning_rate=0.1, nesterov=False, weight_decay=1e-4),
        sparsifying=Sparsifying(**ROWS[name], **{key: knob}),
        hardware=Hardware(threads=1),
    )


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a run."""
    settings = result["config"]["sparsifying"]
    return {
        "seed": result["config"]["seed"],
        "strength": settings["strength"],
        "target": settings.get("target"),
        "accuracy": result["figures"]["trained"]["accuracy"],
        "mult_adds": result["wiring"]["recursive"]["mult_adds"],
        "wiring": result["wiring"],
        "seconds": sum(result["training_seconds"].values()),
    }


def search(name: str, seed: int, first: float, wanted: Goal, options: Any, bar: TrainingBar) -> list[dict[str, Any]]:
    """Runs of a rule until one reaches the goal, the last of which does, or comes as near as `TRIES` allow."""
    steered = name in SIZES[options.data].strengths
    knob, tries, results = first, [], []
    while len(results) < TRIES:
        bar.title = f"{name} {seed}"
        label = name.replace(", ", "-").replace(" ", "-")
        folder = options.runs / f"wiring-{options.data}-{label}-{knob:.4g}-{seed}"
        knob = float(f"{knob:.4g}")
        if (folder / "result.json").exists():
            result = json.loads((folder / "result.json").read_text())
        else:
            wanted_recipe = recipe(options.data, options.data_root, name, knob, seed)
            result = run(wanted_recipe, folder, resume=folder.exists(), watcher=bar)
        results.append(result)
        tries.append((knob, result["wiring"]["recursive"]["mult_adds"]))
        if wanted.reached(tries[-1][1]):
            return results
        knob = next_strength(tries, wanted) if steered else next_target(tries, wanted)
    distance = [abs(reached - wanted.mult_adds) for _, reached in tries]
    return [*results, results[distance.index(min(distance))]]


def row(name: str, wanted: Goal, options: argparse.Namespace, bar: TrainingBar) -> dict[str, Any]:
    """All seeds of a rule; a seed begins where the one before has ended."""
    begin = SIZES[options.data].strengths.get(name, TARGET)
    chosen, made = [], []
    for seed in range(SEEDS):
        results = search(name, seed, begin, wanted, options, bar)
        settings = results[-1]["config"]["sparsifying"]
        begin = settings["strength"] if name in SIZES[options.data].strengths else settings["target"]
        chosen.append(summary(results[-1]))
        made += [summary(result) for result in results]
    accuracies = [one["accuracy"] for one in chosen]
    return {
        "accuracy": statistics.mean(accuracies),
        "spread": statistics.stdev(accuracies),
        "mult_adds": statistics.mean(one["mult_adds"] for one in chosen),
        "within": all(wanted.reached(one["mult_adds"]) for one in chosen),
        "runs": chosen,
        "all_runs": made,
        "config": results[-1]["config"] | {"data_root": None},
        "environment": results[-1]["environment"],
    }


def main() -> None:
    """Run what is not there yet, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", choices=SIZES)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    console = Console()
    wanted = goal(SIZES[options.data], in_channels=1 if options.data == "digits" else 3)
    table = Table(
        "rule", "accuracy", "spread", "Mult-Adds", "of the goal", "edges", "lambda or share", title=options.data
    )
    rows: dict[str, Any] = {}
    with TrainingBar(console) as bar:
        for name in ROWS:
            rows[name] = found = row(name, wanted, options, bar)
            knobs = [one["target"] if one["target"] is not None else one["strength"] for one in found["runs"]]
            table.add_row(
                name, f"{found['accuracy']:.2%}", f"{found['spread']:.2%}", f"{found['mult_adds'] / 1e3:,.0f}k",
                ", ".join(f"{one['mult_adds'] / wanted.mult_adds:.3f}" for one in found["runs"]),
                ", ".join(f"{one['wiring']['edges']:,}" for one in found["runs"]), ", ".join(f"{k:.4g}" for k in knobs),
            )  # fmt: skip
    console.print(table)
    path = options.output / f"wiring-{options.data}.json"
    written = {"goal": {"mult_adds": wanted.mult_adds, "convention": "recursive", "within": NEAR}, "rules": rows}
    path.write_text(json.dumps(written, indent=2) + "\n")
    console.print(f"results in {path}", soft_wrap=True)


if __name__ == "__main__":
    main()
