"""A table about data sets: what was reported of the data, and what ours holds."""

import json
from pathlib import Path
from typing import Any

from diffsparse.data import open_data
from diffsparse.errors import SparsityError
from diffsparse.files import write_json
from diffsparse.recipes.book import Book
from diffsparse.recipes.grid import Grid


def collect_data(book: Book, name: str, root: Path | None) -> list[str]:
    """Look at the data sets of a table and keep what they hold; the sentences say which are missing."""
    path, problems = _path(book, name), []
    found = _read(path)
    for data in book.tables[name].data:
        try:
            summary = open_data(data, root=root).summary()
        except SparsityError as error:
            problems.append(str(error))
            continue
        parts = {part: dict(zip(summary.headings, cells, strict=True)) for part, cells in summary.rows.items()}
        found[data] = {"parts": parts, "caption": summary.caption or ""}
    if found:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, found)
    return problems


def data_grid(book: Book, name: str) -> Grid:
    """What was reported, and one row for each of our data sets and parts."""
    table, found = book.tables[name], _read(_path(book, name))
    rows = [("reported", "", ", ".join(f"{key}: {fact}" for key, fact in table.facts.items()))]
    for data in table.data:
        if data not in found:
            rows.append((data, "", "not looked at yet"))
            continue
        for part, cells in found[data]["parts"].items():
            rows.append((data, part, ", ".join(f"{key}: {cell}" for key, cell in cells.items())))
        if found[data]["caption"]:
            rows.append((data, "", found[data]["caption"]))
    return Grid(headings=("data", "part", "what it holds"), rows=tuple(rows))


def _path(book: Book, name: str) -> Path:
    return book.results / f"{name}.json"


def _read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found
