"""Numbers in rows and columns, each with a name for its place in the file."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from diffsparse.errors import SparsityError

Floats = npt.NDArray[np.float64]

DATES = frozenset({"", "date", "time", "datetime", "timestamp"})
"""What a first column may be headed to be left out, in any case."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """The numbers of one file."""

    path: Path
    """The file."""
    columns: tuple[str, ...]
    """What each column is called."""
    values: Floats
    """(rows, columns); NaN where a cell is empty."""
    first_row: int
    """What the first row of values is called in messages."""

    def refuse(self, wrong: npt.NDArray[np.bool_], problem: str) -> None:
        """Raise with the place and the value of the first entry that is `wrong`, if there is one."""
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            value = self.values[row, column]
            shown = "an empty cell" if np.isnan(value) else f"{value:g}"
            refuse_cell(self.path, self.first_row + row, self.columns[column], f"{shown} {problem}")


def read_csv(path: Path, *, header: bool) -> Table:
    """The numbers of a csv file, in columns named by its first row if that is a `header`, else "1", "2", ...

    Below a header, a first column of dates (`DATES`) is left out. Every row must be as long as the first; text, NaN
    and infinity raise with the place of the cell; an empty cell becomes NaN.
    """
    rows = csv_rows(path)
    first = next(rows, [])
    if not first:
        raise SparsityError(f"'{path}' is empty, or begins with an empty row")
    dates = int(header and first[0].strip().lower() in DATES)
    columns = [cell.strip() for cell in first[dates:]] if header else [str(n) for n in range(1, len(first) + 1)]
    first_row = 2 if header else 1
    numbers = []
    for row, cells in enumerate(rows if header else chain([first], rows), start=first_row):
        if len(cells) != len(first):
            raise SparsityError(f"'{path}', row {row}: {len(cells)} cells, and the first row has {len(first)}")
        numbers.append(_numbers(path, row, columns, cells[dates:]))
    values = np.stack(numbers) if numbers else np.empty((0, len(columns)))
    return Table(path=path, columns=tuple(columns), values=values, first_row=first_row)


def csv_rows(path: Path) -> Iterator[list[str]]:
    """The cells of each row; a blank line is an empty row, except at the end of the file, where it is none."""
    blank = 0
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            for cells in csv.reader(file):
                if not cells:
                    blank += 1
                    continue
                for _ in range(blank):
                    yield []
                blank = 0
                yield cells
    except OSError as error:
        raise SparsityError(f"cannot read '{path}': {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise SparsityError(f"'{path}' is not a csv file: {error}") from error


def refuse_cell(path: Path, row: int, column: str, problem: str) -> NoReturn:
    """Raise with the place of one cell."""
    raise SparsityError(f"'{path}', row {row}, column '{column}': {problem}")


def _numbers(path: Path, row: int, columns: Sequence[str], cells: list[str]) -> Floats:
    try:
        numbers = np.array(cells, dtype=np.float64)
    except ValueError:
        numbers = np.array([_number(path, row, column, cell) for column, cell in zip(columns, cells, strict=True)])
    for column, cell, finite in zip(columns, cells, np.isfinite(numbers), strict=True):
        if not finite and cell.strip():
            refuse_cell(path, row, column, f"'{cell}' is not a finite number")
    return numbers


def _number(path: Path, row: int, column: str, cell: str) -> float:
    try:
        return float(cell) if cell.strip() else np.nan
    except ValueError:
        refuse_cell(path, row, column, f"'{cell}' is not a number; dates go into a first column headed 'date'")
