"""A table with the reported rows beside ours, as plain cells: the command line and the page print the same."""

from collections.abc import Mapping
from dataclasses import dataclass

from diffsparse.recipes.agreement import MARKS, judge, order, sign
from diffsparse.recipes.book import Book
from diffsparse.recipes.columns import COLUMNS, Convention
from diffsparse.recipes.results import RowValues, table_values

WORDS = {"agrees": "agrees", "undecided": "within the spread", "differs": "does not agree", "open": "not known"}


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Cells, and sentences below them."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def table_grid(book: Book, name: str, size: str, convention: Convention) -> Grid:
    """Reported numbers and ours in one cell each, "reported | ours", and what agrees."""
    table, values = book.tables[name], table_values(book, name, size, convention)
    headings = ["", *(_heading(column, convention) for column in table.columns)]
    headings += (["sign"] if table.base else []) + ["runs"]
    rows = []
    for row, found in values.items():
        cells = [row, *(_cell(column, found) for column in table.columns)]
        if table.base:
            verdict = sign(table, values, row)
            cells.append("" if verdict == "open" else MARKS[verdict])
        cells.append(f"{found.runs} of {found.wanted}" if found.wanted else "")
        rows.append(tuple(cells))
    return Grid(headings=tuple(headings), rows=tuple(rows), notes=tuple(_notes(book, name, values)))


def _heading(column: str, convention: Convention) -> str:
    return COLUMNS[column].heading.replace("FLOPs", convention.operations)


def _cell(name: str, found: RowValues) -> str:
    column = COLUMNS[name]
    reported, ours = (
        column.show(values[name].value, values[name].spread) if name in values else ""
        for values in (found.reported, found.ours)
    )
    return f"{reported or '-'} | {ours or '-'}" if reported or ours else ""


def _notes(book: Book, name: str, values: Mapping[str, RowValues]) -> list[str]:
    table = book.tables[name]
    notes = []
    for claim in table.claims:
        found = judge(claim, values)
        ours = f"ours {WORDS[found.ours]} ({found.numbers})" if found.numbers else "ours not run yet"
        said = "" if found.reported == "open" else f"reported: {WORDS[found.reported]}; "
        notes.append(f"{MARKS[found.ours]} {claim.text}: {said}{ours}.")
    same = order(table, values)
    if same.total:
        heading = COLUMNS[table.headline].heading
        pairs = f"{same.agreeing} of {same.total} pairs of rows are in the reported order of {heading}"
        rest = f", {same.undecided} are within the spread" if same.undecided else ""
        turned = "; ".join(f"{smaller} above {larger}" for smaller, larger in same.reversed)
        notes.append(f"{pairs}{rest}{f'; the other way round: {turned}' if turned else ''}.")
    return notes
