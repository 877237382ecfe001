"""From runs to tables: means and spreads over seeds, and what was left of every layer."""

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.transformer_runs.picture import draw_left
from experiments.transformer_runs.tasks import TASKS

RESULTS = Path(__file__).parent.parent / "results"
PAGE = Path(__file__).parent.parent.parent / "docs" / "transformers.md"


def read_runs(task: str, folder: Path) -> list[dict[str, Any]]:
    """The records of all runs: those in the results that were written before, and those in `folder`."""
    written = RESULTS / f"transformers-{task}.json"
    known = json.loads(written.read_text())["runs"] if written.exists() else []
    found = {_key(run): run for run in known}
    for path in sorted(folder.glob("*.json")):
        run = json.loads(path.read_text())
        found[_key(run)] = run
    return [found[key] for key in sorted(found)]


def _key(run: Mapping[str, Any]) -> tuple[str, float, int]:
    return run["row"], -run["budget"], run["seed"]


def rows_of(runs: Iterable[Mapping[str, Any]], figure: str) -> list[dict[str, Any]]:
    """One row per method and budget."""
    groups: dict[tuple[float, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        groups.setdefault((-run["budget"], run["row"]), []).append(run)
    rows = []
    for (budget, name), members in sorted(groups.items()):
        values = [run[figure] for run in members]
        row = {"budget": -budget, "row": name, "runs": len(members), figure: statistics.mean(values)}
        row["spread"] = statistics.stdev(values) if len(values) > 1 else None
        rows.append(row | {key: statistics.mean(run[key] for run in members) for key in ("macs", "steps", "seconds")})
    return rows


def markdown(rows: Iterable[Mapping[str, Any]], figure: str) -> str:
    """The rows as a table for the documentation."""
    lines = [f"| budget | row | {figure} | MACs | steps | seconds | runs |", "|---|---|---|---|---|---|---|"]
    digits = 3 if figure == "loss" else 2
    for row in rows:
        spread = "" if row["spread"] is None else f" ± {row['spread']:.{digits}f}"
        cells = [
            f"{row['budget']:.0%}", row["row"], f"{row[figure]:.{digits}f}{spread}", f"{row['macs']:.1%}",
            f"{row['steps']:.0f}", f"{row['seconds']:.0f}", str(row["runs"]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def documented(page: str, task: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """The page with the table of this task replaced; it lies between two marks."""
    begin, end = f"<!-- table of {task} -->", f"<!-- end of {task} -->"
    ahead, found, rest = page.partition(begin)
    _, closed, behind = rest.partition(end)
    if not found or not closed:
        raise RuntimeError(f"the page has no marks '{begin}' and '{end}'")
    return f"{ahead}{begin}\n{markdown(rows, TASKS[task].figure)}\n{end}{behind}"


def summarise(task: str, folder: Path) -> None:
    """Write results, picture and the table of the documentation from the runs there are, and print the table."""
    runs, figure = read_runs(task, folder), TASKS[task].figure
    rows = rows_of(runs, figure)
    settings = {key: value for key, value in asdict(TASKS[task]).items() if not callable(value)}
    content = {"task": settings | {"network": str(TASKS[task].network)}, "rows": rows, "runs": runs}
    (RESULTS / f"transformers-{task}.json").write_text(json.dumps(content, indent=1) + "\n")
    draw_left(RESULTS / f"transformers-{task}.svg", runs)
    PAGE.write_text(documented(PAGE.read_text(), task, rows))
    print(markdown(rows, figure))
