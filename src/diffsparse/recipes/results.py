"""Results of finished runs: one JSON file per table and size, and what a row shows of its runs."""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffsparse.errors import SparsityError
from diffsparse.files import write_json
from diffsparse.recipes.book import Book
from diffsparse.recipes.columns import COLUMNS, Convention, Facts
from diffsparse.recipes.facts import read_facts
from diffsparse.recipes.jobs import Job, row_jobs
from diffsparse.recipes.table import Row, Table

FORMAT = 1
"""Version of the files."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """A number with its spread, if there is one."""

    value: float
    spread: float | None = None


@dataclass(frozen=True, kw_only=True)
class RowValues:
    """What a row shows."""

    reported: Mapping[str, Value] = field(default_factory=dict)
    ours: Mapping[str, Value] = field(default_factory=dict)
    """Empty if no run is finished."""
    runs: int = 0
    """Finished runs."""
    wanted: int = 0
    """Runs that the size asks for; 0 if the row is not trained at this size."""


def results_path(book: Book, table: str, size: str) -> Path:
    """The file with the results of a table."""
    return book.results / f"{table}-{size}.json"


def read_results(book: Book, table: str, size: str) -> dict[str, Any]:
    """What the file of a table holds, by row and seed; empty if there is none."""
    path = results_path(book, table, size)
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rows: dict[str, Any] = found["rows"]
        if found["format"] == FORMAT:
            return rows
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{type(error).__name__} {error}"
        raise SparsityError(f"'{path}' holds no results ({problem}); remove it, and run the table again") from error
    raise SparsityError(f"'{path}' has format {found['format']}, not {FORMAT}; remove it, and run the table again")


def collect(book: Book, job: Job) -> None:
    """Take the facts of a finished run into the file of its table."""
    rows = read_results(book, job.table, job.size)
    entry = rows.get(job.row, {})
    if entry.get("key") != job.key:
        entry = {"key": job.key, "runs": {}}
    known = book.cover.data[job.recipe.data]
    runs = entry["runs"] | {str(job.seed): read_facts(job.folder, known, book.cover.group)}
    entry["runs"] = {seed: runs[seed] for seed in sorted(runs, key=int)}
    order = [row.name for row in book.tables[job.table].rows]
    # rows that have left the recipe leave the results too
    rows = {name: (rows | {job.row: entry}).get(name) for name in order}
    book.results.mkdir(parents=True, exist_ok=True)
    kept = {name: values for name, values in rows.items() if values is not None}
    head = {"format": FORMAT, "table": job.table, "size": job.size}
    write_json(results_path(book, job.table, job.size), head | {"rows": kept})


def is_collected(book: Book, job: Job) -> bool:
    """Whether the results hold this run, made with these settings."""
    entry = read_results(book, job.table, job.size).get(job.row, {})
    return entry.get("key") == job.key and str(job.seed) in entry["runs"]


def table_values(book: Book, name: str, size: str, convention: Convention) -> dict[str, RowValues]:
    """What each row of a table shows, reported and ours."""
    table = book.tables[name]
    return {row.name: _row_values(book, name, row, size, convention) for row in table.rows}


def _row_values(book: Book, name: str, row: Row, size: str, convention: Convention) -> RowValues:
    reported = {column: Value(value=pair[0], spread=(*pair, None)[1]) for column, pair in row.reported.items()}
    jobs = row_jobs(book, name, row, size) if size in book.tables[book.source(name, row)[0]].sizes else []
    facts: list[Facts] = []
    if jobs:
        entry = read_results(book, jobs[0].table, size).get(jobs[0].row, {})
        if entry.get("key") == jobs[0].key:
            facts = [entry["runs"][str(job.seed)] for job in jobs if str(job.seed) in entry["runs"]]
    ours = _summary(book.tables[name], facts, convention) if facts else {}
    return RowValues(reported=reported, ours=ours, runs=len(facts), wanted=len(jobs))


def _summary(table: Table, facts: list[Facts], convention: Convention) -> dict[str, Value]:
    """Of all columns that the runs have, the mean or the value of the median run, and the spread over the runs."""
    chosen = facts if table.statistic == "mean" else [_median_run(table, facts, convention)]
    found: dict[str, Value] = {}
    for name, column in COLUMNS.items():
        numbers = [number for run in facts if (number := column.value(run, convention)) is not None]
        if len(numbers) == len(facts):
            spread = statistics.stdev(numbers) if len(numbers) > 1 else None
            own = [number for run in chosen if (number := column.value(run, convention)) is not None]
            found[name] = Value(value=statistics.mean(own), spread=spread)
    return found


def _median_run(table: Table, facts: list[Facts], convention: Convention) -> Facts:
    """The run whose headline is the median; of an even number, the lower of the two in the middle."""
    headline = COLUMNS[table.headline]
    order = sorted(facts, key=lambda run: headline.value(run, convention) or 0.0)
    return order[(len(order) - 1) // 2]
