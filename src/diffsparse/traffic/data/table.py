"""Tables of numbers from csv and HDF5 files; error messages name the file, the row and the column."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from diffsparse.errors import SparsityError

Floats = npt.NDArray[np.float64]

DATES = frozenset({"", "date", "time", "datetime", "timestamp"})
"""Names, in any case, of a first column to leave out."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """The numbers in one file."""

    path: Path
    columns: tuple[str, ...]
    values: Floats
    """(rows, columns); NaN where a cell is empty."""
    first_row: int
    """The number of the first row of values in messages."""

    def refuse(self, wrong: npt.NDArray[np.bool_], problem: str) -> None:
        """Raise an error that names the first entry that is `wrong`, if there is one."""
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            value = self.values[row, column]
            shown = "an empty cell" if np.isnan(value) else f"{value:g}"
            refuse_cell(self.path, self.first_row + row, self.columns[column], f"{shown} {problem}")


def read_csv(path: Path, *, header: bool) -> Table:
    """The numbers in a csv file; the first row names the columns if it is a `header`, else they are "1", "2", ...

    Below a header, a first column of dates (`DATES`) is left out. All rows must have the same length. Text, NaN and
    infinity raise an error that names the cell; an empty cell becomes NaN.
    """
    rows = csv_rows(path)
    first = next(rows, [])
    if not first:
        raise SparsityError(f"'{path}' is empty or begins with an empty row")
    dates = int(header and first[0].strip().lower() in DATES)
    columns = [cell.strip() for cell in first[dates:]] if header else [str(n) for n in range(1, len(first) + 1)]
    first_row = 2 if header else 1
    numbers = []
    for row, cells in enumerate(rows if header else chain([first], rows), start=first_row):
        if len(cells) != len(first):
            raise SparsityError(f"'{path}', row {row}: {len(cells)} cells, but the first row has {len(first)}")
        numbers.append(_numbers(path, row, columns, cells[dates:]))
    values = np.stack(numbers) if numbers else np.empty((0, len(columns)))
    return Table(path=path, columns=tuple(columns), values=values, first_row=first_row)


def csv_rows(path: Path) -> Iterator[list[str]]:
    """The cells of each row; a blank line is an empty row, but blank lines at the end of the file are ignored."""
    blank = 0
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            for cells in csv.reader(file):
                if cells:
                    yield from repeat([], blank)
                    yield cells
                blank = 0 if cells else blank + 1
    except OSError as error:
        raise SparsityError(f"cannot read '{path}': {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise SparsityError(f"'{path}' is not a csv file: {error}") from error


def refuse_cell(path: Path, row: int, column: str, problem: str) -> NoReturn:
    """Raise an error that names one cell."""
    raise SparsityError(f"'{path}', row {row}, column '{column}': {problem}")


def _numbers(path: Path, row: int, columns: Sequence[str], cells: list[str]) -> Floats:
    try:
        numbers = np.array(cells, dtype=np.float64)
        if np.isfinite(numbers).all():
            return numbers
    except ValueError:
        pass
    return np.array([_number(path, row, column, cell) for column, cell in zip(columns, cells, strict=True)])


def _number(path: Path, row: int, column: str, cell: str) -> float:
    if not cell.strip():
        return np.nan
    try:
        number = float(cell)
    except ValueError:
        refuse_cell(path, row, column, f"'{cell}' is not a number; put dates in a first column named 'date'")
    if not np.isfinite(number):
        refuse_cell(path, row, column, f"'{cell}' is not a finite number")
    return number


def read_hdf5(path: Path) -> Table:
    """The only pandas data frame in an HDF5 file, in fixed format and of one dtype, as in METR-LA and PEMS-BAY.

    Needs the `traffic` extra.
    """
    try:
        import h5py
    except ImportError:
        raise SparsityError(f"'{path}' needs h5py; install it with: pip install 'diffsparse[traffic]'") from None
    try:
        with h5py.File(path, "r") as file:
            groups = [node for node in file.values() if isinstance(node, h5py.Group)]
            frames = [group for group in groups if "block0_values" in group and "block0_items" in group]
            if len(frames) != 1 or "block1_values" in frames[0]:
                raise SparsityError(f"'{path}' must hold one pandas data frame in fixed format, of one dtype")
            values, names = frames[0]["block0_values"][()], frames[0]["block0_items"][()]
    except OSError as error:
        raise SparsityError(f"cannot read '{path}' as HDF5: {error}") from error
    if values.ndim != 2 or values.shape[1:] != names.shape or values.dtype.kind not in "fiu":
        raise SparsityError(
            f"'{path}' must hold numbers (rows, columns) and a name for each column, "
            f"got {values.dtype} of shape {values.shape} and {len(names)} names"
        )
    columns = tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist())
    return Table(path=path, columns=columns, values=values.astype(np.float64), first_row=0)
