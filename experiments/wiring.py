"""Which rule finds the better wiring: a random draw, the largest edges, proximal steps or learned thresholds.

    python experiments/wiring.py --data-root DIR

Every rule trains the same wired network for the same epochs to the same Mult-Adds, within 5 %: those of a graph with
all nodes and a twentieth of the edges. Only the part of the graph that the output depends on is counted (the
recursive convention). Rules with a fixed number of edges get there by their share of zero edges, proximal steps by
lambda, ours by the decay of thresholds. A run that misses the goal is repeated with a setting that the runs before
suggest. There are two seeds, five on digits. Writes experiments/results/wiring-SIZE.json with every run made;
finished runs are not repeated. `digits` is a small version, and `digits-long` trains five times as long. Two variants
of the latter, with three seeds each: `digits-slow` has a fifth of the learning rate, `digits-start` initial edges
larger by the root of five.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from diffsparse.cli.train import TrainingBar
from diffsparse.models import create
from diffsparse.training import Hardware, Optimisation, Recipe, Sparsifying, train
from diffsparse.wiring import Edges, StageShape, WiringGraph, wiring_cost, wiring_graph
from diffsparse.wiring.graph import wiring_figures

RESULTS = Path(__file__).parent / "results"
TARGET = 0.95
NEAR = 0.05
TRIES = 8


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of a comparison."""

    data: str
    model: str
    epochs: int
    batch_size: int
    image: int
    seeds: int
    learning_rate: float = 0.1
    start: float = 1.0
    """Factor on the initial edges."""
    begin: dict[str, float]
    """The first value to try for the setting of each rule."""


_CIFAR10 = Size(
    data="cifar10",
    model="wired-mobilenet-0.125",
    epochs=3,
    batch_size=128,
    image=32,
    seeds=2,
    begin={
        "random": 0.8712,
        "dnw, no update": 0.89,
        "dnw": 0.885,
        "proximal l1": 0.0165,
        "ours": 1.249e-3,
        "ours, rgf": 1.249e-3,
    },
)
_DIGITS = Size(
    data="digits",
    model="wired-mobilenet-0.25-small",
    epochs=6,
    batch_size=64,
    image=8,
    seeds=5,
    begin={
        "random": 0.8823,
        "dnw, no update": 0.8954,
        "dnw": 0.8807,
        "proximal l1": 0.2518,
        "ours": 0.01976,
        "ours, rgf": 0.01954,
    },
)
# lambda and decay act per step: five times the steps need about a fifth of them; at a fifth of the rate, the same again
_LONG = replace(_DIGITS, epochs=30, begin=_DIGITS.begin | {"proximal l1": 0.06, "ours": 0.004, "ours, rgf": 0.004})
_SLOW = replace(
    _LONG,
    seeds=3,
    learning_rate=0.02,
    begin=_DIGITS.begin | {"proximal l1": 0.3, "ours": 0.02, "ours, rgf": 0.02},
)
# batch norm removes the scale of edges: with a scale of s they train as if their rate were divided by s squared
_START = replace(_LONG, seeds=3, start=5**0.5, begin=_LONG.begin | {"proximal l1": 0.13})
SIZES = {"cifar10": _CIFAR10, "digits": _DIGITS, "digits-long": _LONG, "digits-slow": _SLOW, "digits-start": _START}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A row of the table."""

    sparsifying: dict[str, Any]
    """The settings of the rule."""
    knob: str
    """The setting that is adjusted to reach the goal; a larger value means fewer Mult-Adds."""
    slope: float = 1.0
    """By about how many per cent the Mult-Adds fall if it grows by one per cent."""


# In so short a run a larger lambda shrinks all edges of a node alike, which batch norm undoes, and drops none. So ours
# reaches the goal by the decay of thresholds, at one lambda.
ROWS = {
    "random": Rule(sparsifying={"method": "random"}, knob="target"),
    "dnw, no update": Rule(sparsifying={"method": "dnw-no-update"}, knob="target"),
    "dnw": Rule(sparsifying={"method": "dnw"}, knob="target"),
    "proximal l1": Rule(sparsifying={"method": "proximal-l1"}, knob="strength"),
    "ours": Rule(sparsifying={"method": "ds", "strength": 3e-4}, knob="gate_weight_decay", slope=4.0),
    "ours, rgf": Rule(sparsifying={"method": "ds", "strength": 3e-4, "rgf": 0.1}, knob="gate_weight_decay", slope=4.0),
}


@dataclass(frozen=True)
class Goal:
    """The Mult-Adds to reach."""

    nodes: int
    """Mult-Adds of the complete graph without its edges."""
    edges: int
    """Mult-Adds of all usable edges."""

    @property
    def mult_adds(self) -> float:
        """Mult-Adds of a graph with all nodes but without the share `TARGET` of its edges."""
        return self.nodes + (1 - TARGET) * self.edges

    def reached(self, mult_adds: int) -> bool:
        """Whether this is close enough."""
        return abs(mult_adds / self.mult_adds - 1) <= NEAR


def goal(size: Size) -> Goal:
    """The Mult-Adds that the network of `size` should reach."""
    channels = 1 if size.data == "digits" else 3
    graph: WiringGraph = wiring_graph(create(size.model, num_classes=10, in_channels=channels))
    complete = wiring_figures(graph, size.image)["complete"]["mult_adds"]
    none = wiring_cost(graph, size.image, edges=[0.0] * len(graph.stages)).mult_adds
    return Goal(nodes=none, edges=complete - none)


def next_knob(rule: Rule, tries: list[tuple[float, int]], wanted: Goal) -> float:
    """The setting to try next, after `tries` of (setting, Mult-Adds reached).

    It lies between the two runs closest to the goal on either side, or beyond the last one if all are on one side.
    """
    over, under = ([t for t in tries if (t[1] > wanted.mult_adds) == side] for side in (True, False))
    if over and under:
        (low, more), (high, less) = max(over), min(under)
        return low + (high - low) * (more - wanted.mult_adds) / (more - less)
    knob, reached = max(over) if over else min(under)
    if rule.knob == "target":
        # the Mult-Adds fall in proportion to the share of zero edges
        return knob + (reached - wanted.mult_adds) / wanted.edges
    return knob * math.exp(min(max(math.log(reached / wanted.mult_adds), -0.7), 0.7) / rule.slope)


def recipe(size: Size, root: Path | None, name: str, knob: float, seed: int) -> Recipe:
    """One run."""
    rule = ROWS[name]
    gates = {rule.knob: knob} if rule.knob == "gate_weight_decay" else {}
    return Recipe(
        model=size.model,
        data=size.data,
        data_root=root,
        epochs=size.epochs,
        batch_size=size.batch_size,
        seed=seed,
        optimisation=Optimisation(learning_rate=size.learning_rate, nesterov=False, weight_decay=1e-4, **gates),
        sparsifying=Sparsifying(**rule.sparsifying, **({} if gates else {rule.knob: knob})),
        hardware=Hardware(threads=1),
    )


def summary(result: dict[str, Any], knob: float) -> dict[str, Any]:
    """The results of a run to keep."""
    return {
        "seed": result["config"]["seed"],
        "knob": knob,
        "accuracy": result["figures"]["trained"]["accuracy"],
        "mult_adds": result["wiring"]["recursive"]["mult_adds"],
        "wiring": result["wiring"],
        "seconds": sum(result["training_seconds"].values()),
    }


@contextmanager
def edges_start_at(factor: float) -> Iterator[None]:
    """While it is open, edges of new stages start `factor` times as large."""
    usual = Edges.start

    @torch.no_grad()
    def start(edges: Edges, shape: StageShape) -> None:
        usual(edges, shape)
        for weight in edges.weights():
            weight.mul_(factor)

    Edges.start = start  # type: ignore[method-assign]
    try:
        yield
    finally:
        Edges.start = usual  # type: ignore[method-assign]


def finished(name: str, knob: float, seed: int, options: argparse.Namespace, bar: TrainingBar) -> dict[str, Any]:
    """The result of a run, which is trained first if there is none."""
    folder = options.runs / f"wiring-{options.size}-{name.replace(', ', '-').replace(' ', '-')}-{knob:g}-{seed}"
    if (folder / "result.json").exists():
        found: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return found
    bar.title = f"{name} {seed}"
    size = SIZES[options.size]
    with edges_start_at(size.start):
        return train(recipe(size, options.data_root, name, knob, seed), folder, resume=folder.exists(), watcher=bar)


def row(name: str, wanted: Goal, options: argparse.Namespace, bar: TrainingBar) -> dict[str, Any]:
    """All seeds of a rule; each seed starts with the setting that the one before ended with."""
    knob = SIZES[options.size].begin[name]
    chosen: list[dict[str, Any]] = []
    made: list[dict[str, Any]] = []
    for seed in range(SIZES[options.size].seeds):
        tries: list[tuple[float, int]] = []
        here: list[dict[str, Any]] = []
        while len(tries) < TRIES and not (tries and wanted.reached(tries[-1][1])):
            if tries:
                knob = next_knob(ROWS[name], tries, wanted)
            knob = float(f"{knob:.4g}")
            result = finished(name, knob, seed, options, bar)
            here.append(summary(result, knob))
            tries.append((knob, here[-1]["mult_adds"]))
        chosen.append(min(here, key=lambda one: abs(one["mult_adds"] - wanted.mult_adds)))
        made += here
        knob = chosen[-1]["knob"]
    accuracies = [one["accuracy"] for one in chosen]
    return {
        "accuracy": statistics.mean(accuracies),
        "spread": statistics.stdev(accuracies),
        "mult_adds": statistics.mean(one["mult_adds"] for one in chosen),
        "within": all(wanted.reached(one["mult_adds"]) for one in chosen),
        "knob": ROWS[name].knob,
        "runs": chosen,
        "other_runs": [one for one in made if one not in chosen],
        "config": result["config"] | {"data_root": None},
        "environment": result["environment"],
    }


def main() -> None:
    """Make the missing runs, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", choices=SIZES, nargs="?", default="cifar10")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--output", type=Path, help="by default experiments/results/wiring-SIZE.json")
    options = parser.parse_args()
    console = Console()
    wanted = goal(SIZES[options.size])
    table = Table("rule", "accuracy", "spread", "Mult-Adds", "of the goal", "edges", "by", title=options.size)
    rows: dict[str, Any] = {}
    with TrainingBar(console) as bar:
        for name in ROWS:
            rows[name] = found = row(name, wanted, options, bar)
            knobs = ", ".join(f"{one['knob']:g}" for one in found["runs"])
            table.add_row(
                name, f"{found['accuracy']:.2%}", f"{found['spread']:.2%}", f"{found['mult_adds'] / 1e3:,.0f}k",
                ", ".join(f"{one['mult_adds'] / wanted.mult_adds:.3f}" for one in found["runs"]),
                ", ".join(f"{one['wiring']['edges']:,}" for one in found["runs"]), f"{found['knob']} {knobs}",
            )  # fmt: skip
    console.print(table)
    path = options.output or RESULTS / f"wiring-{options.size}.json"
    written = {
        "goal": {"mult_adds": wanted.mult_adds, "convention": "recursive", "within": NEAR},
        "start": SIZES[options.size].start,
        "rules": rows,
    }
    path.write_text(json.dumps(written, indent=2) + "\n")
    console.print(f"results in {path}", soft_wrap=True)


if __name__ == "__main__":
    main()
