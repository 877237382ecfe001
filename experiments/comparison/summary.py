"""From runs to tables: means and spreads over seeds, latency of one network each, and the table as Markdown."""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffsparse.measuring.meter import measure_in_turns

RESULTS = Path(__file__).parent.parent / "results"


def read_runs(folder: Path, setting: str, *, stored: bool = True) -> list[dict[str, Any]]:
    """The records of all runs: those in the results that were `stored` before, and those in `folder`."""
    written = RESULTS / f"budget-{setting}.json"
    known = json.loads(written.read_text())["runs"] if stored and written.exists() else []
    found = {_key(run): run for run in known}
    for path in sorted(folder.glob("*.json")):
        run = json.loads(path.read_text()) | {"file": path.with_suffix(".pt").name}
        found[_key(run)] = run
    return [found[key] for key in sorted(found)]


def _key(run: Mapping[str, Any]) -> tuple[str, float, int]:
    return run["method"], -run["budget"], run["seed"]


def timing_machine(runs: Iterable[Mapping[str, Any]]) -> str | None:
    """The processor with most of the runs; times of different ones cannot be compared."""
    known = Counter(run["machine"] for run in runs if "machine" in run)
    return known.most_common(1)[0][0] if known else None


def rows_of(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per method and budget, in the order of accuracy within a budget; times are of one processor."""
    groups: dict[tuple[float, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["budget"], run["method"]), []).append(run)
    machine = timing_machine(runs)
    rows = [_row(budget, method, members, machine) for (budget, method), members in groups.items()]
    return sorted(rows, key=lambda row: (-row["budget"], -row["accuracy"]))


def _row(budget: float, method: str, runs: list[Mapping[str, Any]], machine: str | None) -> dict[str, Any]:
    accuracies = [run["accuracy"] for run in runs]
    row: dict[str, Any] = {"budget": budget, "method": method, "runs": len(runs)}
    row["accuracy"] = statistics.mean(accuracies)
    row["spread"] = statistics.stdev(accuracies) if len(runs) > 1 else None
    for name in ("macs", "params"):
        row[name] = statistics.mean(run[name] for run in runs)
    for name in ("seconds", "latency_ms"):
        times = [run[name] for run in runs if name in run and run.get("machine") == machine]
        row[name] = statistics.mean(times) if times else None
    return row


def add_latency(folder: Path, runs: list[dict[str, Any]], images: Tensor) -> None:
    """Time one network of each row, all in turns on one thread, and note it in their records."""
    here = [run for run in runs if (folder / run.get("file", "-")).exists()]
    seed = Counter(run["seed"] for run in here).most_common(1)[0][0] if here else None
    timed = [(run, folder / run["file"]) for run in here if run["seed"] == seed]
    models = [torch.load(path, weights_only=False).eval() for _, path in timed]
    for (run, _), cost in zip(timed, measure_in_turns(models, images), strict=True):
        assert cost.latency is not None
        run["latency_ms"] = 1e3 * cost.latency.median


def markdown(rows: Iterable[Mapping[str, Any]]) -> str:
    """The rows as a table for the documentation."""
    lines = [
        "| budget | method | accuracy | MACs | parameters | training | latency | runs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        spread = "" if row["spread"] is None else f" ± {100 * row['spread']:.2f}"
        cells = (
            "" if row["budget"] == 1 else f"{row['budget']:.0%}", row["method"], f"{100 * row['accuracy']:.2f}{spread}",
            f"{row['macs']:.1%}", f"{row['params']:.1%}", _number(row["seconds"], ".0f", "s"),
            _number(row["latency_ms"], ".1f", "ms"), str(row["runs"]),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(number: float | None, digits: str, unit: str) -> str:
    return "" if number is None else f"{number:{digits}} {unit}"
