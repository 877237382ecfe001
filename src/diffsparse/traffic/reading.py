"""Speeds on roads and the map of the roads, read from csv and HDF5 files; messages name the file, row and column."""

import csv
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsparse.errors import SparsityError, import_extra, require_number, require_whole

Floats = npt.NDArray[np.float64]

# Names, in any case, of a first column to leave out.
DATES = frozenset({"", "date", "time", "datetime", "timestamp"})


@dataclass(frozen=True, kw_only=True, eq=False)
class Speeds:
    """Speeds (steps, nodes) in float64, 0 where one is missing, and the name of each node."""

    values: Tensor
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """The numbers (rows, columns) in one file, NaN where a cell is empty; messages count rows from `first_row`."""

    path: Path
    columns: tuple[str, ...]
    values: Floats
    first_row: int

    def refuse(self, wrong: npt.NDArray[np.bool_], problem: str) -> None:
        """Raise an error that names the first entry that is `wrong`, if there is one."""
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            value = self.values[row, column]
            shown = "an empty cell" if np.isnan(value) else f"{value:g}"
            _refuse_cell(self.path, self.first_row + row, self.columns[column], f"{shown} {problem}")


def read_speeds(path: str | os.PathLike[str], *, zeros_missing: bool = False, slowest: float = 0.0) -> Speeds:
    """Speeds from a csv file with a header of node names and optionally a first column of dates, or from HDF5.

    Args:
        path: the file; if it ends in .h5, .hdf5 or .hdf, it is read as HDF5, which needs the `traffic` extra.
        zeros_missing: treat zeros and empty cells (NaN in HDF5) as missing values; by default they are errors.
        slowest: treat slower speeds as missing too. The relative error of a speed near zero would be huge.
    """
    require_number("slowest", slowest, low=0)
    path = Path(path)
    table = read_hdf5(path) if path.suffix.lower() in (".h5", ".hdf5", ".hdf") else read_csv(path, header=True)
    _check_names(table)
    if table.values.size == 0:
        raise SparsityError(f"'{path}' holds no speeds")
    values = np.nan_to_num(table.values, nan=0.0, posinf=np.inf, neginf=-np.inf)
    table.refuse(~np.isfinite(values) | (values < 0), "is not a speed")
    if not zeros_missing:
        table.refuse(values == 0, "is not a speed; set zeros_missing if zeros and empty cells are missing values")
    values[values < slowest] = 0
    silent = np.flatnonzero(~values.any(0))
    if len(silent):
        raise SparsityError(f"'{path}', column '{table.columns[silent[0]]}': the node never has a speed")
    return Speeds(values=torch.from_numpy(values), names=table.columns)


def resampled(speeds: Speeds, steps: int) -> Speeds:
    """Means of the known speeds over every `steps` steps; an incomplete window at the end is left out."""
    require_whole("steps", steps, low=1)
    whole = len(speeds.values) // steps
    windows = speeds.values[: whole * steps].reshape(whole, steps, -1)
    known = (windows > 0).sum(1)
    return Speeds(values=windows.sum(1) / known.clamp(min=1), names=speeds.names)


def read_adjacency(path: str | os.PathLike[str]) -> Tensor:
    """A bool matrix (nodes, nodes) from a csv file of weights without a header: True where a weight is above 0.

    The diagonal is always False: a node is not linked to itself.
    """
    table = read_csv(Path(path), header=False)
    rows, columns = table.values.shape
    if rows != columns:
        raise SparsityError(f"'{path}': an adjacency must be square, got {rows} rows and {columns} columns")
    table.refuse(~(table.values >= 0), "is not a weight")
    return _linked(path, table.values > 0)


def read_distances(path: str | os.PathLike[str], names: Sequence[str], *, least_weight: float = 0.1) -> Tensor:
    r"""A bool matrix (nodes, nodes) from a csv file of road distances: from, to, distance; with or without a header.

    Two nodes are linked if the weight :math:`e^{-(d/s)^2}` is at least `least_weight`, where s is the standard
    deviation of the listed distances between the nodes in `names`. This is the usual map of METR-LA and PEMS-BAY. Entry
    [i, j] is the way from i to j. Rows about other nodes are ignored; the diagonal is False.
    """
    require_number("least_weight", least_weight, above=0, high=1)
    distances = np.full((len(names), len(names)), np.inf)
    place = {name: number for number, name in enumerate(names)}
    for source, target, distance in _triples(Path(path)):
        if source in place and target in place:
            distances[place[source], place[target]] = distance
    listed = distances[np.isfinite(distances)]
    if len(listed) == 0 or listed.std() == 0:
        nodes = f"the {len(names)} nodes {', '.join(names[:3])} ..."
        found = f"{len(listed)}{' that are all the same' if len(listed) > 1 else ''}"
        raise SparsityError(f"'{path}' must list different distances between {nodes}, got {found}")
    return _linked(path, np.exp(-np.square(distances / listed.std())) >= least_weight)


def _check_names(table: Table) -> None:
    # a whole number may name a node, but 51.5 hardly does
    speeds = [name for name in table.columns if re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+)(e[+-]?\d+)?", name, re.I)]
    if speeds:
        raise SparsityError(f"'{table.path}' must begin with a header of node names, got speeds such as {speeds[0]}")
    if "" in table.columns:
        raise SparsityError(f"'{table.path}': the header must name each node, got an empty name")
    for name, count in Counter(table.columns).items():
        if count > 1:
            raise SparsityError(f"'{table.path}': the header must name each node once, got '{name}' twice")


def _linked(path: str | os.PathLike[str], matrix: npt.NDArray[np.bool_]) -> Tensor:
    links = matrix & ~np.eye(len(matrix), dtype=np.bool_)
    if not links.any():
        raise SparsityError(f"'{path}' links no two nodes")
    return torch.from_numpy(links)


def _triples(path: Path) -> Iterator[tuple[str, str, float]]:
    for row, cells in enumerate(csv_rows(path), start=1):
        if len(cells) != 3:
            raise SparsityError(f"'{path}', row {row}: {len(cells)} cells instead of from, to and distance")
        try:
            distance = float(cells[2])
        except ValueError:
            distance = math.nan
        if row == 1 and math.isnan(distance):
            continue
        if not 0 <= distance < math.inf:
            _refuse_cell(path, row, "3", f"'{cells[2]}' is not a distance")
        yield cells[0].strip(), cells[1].strip(), distance


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


def _refuse_cell(path: Path, row: int, column: str, problem: str) -> NoReturn:
    raise SparsityError(f"'{path}', row {row}, column '{column}': {problem}")


def _numbers(path: Path, row: int, columns: Sequence[str], cells: list[str]) -> Floats:
    with suppress(ValueError):
        numbers = np.array(cells, dtype=np.float64)
        if np.isfinite(numbers).all():
            return numbers
    return np.array([_number(path, row, column, cell) for column, cell in zip(columns, cells, strict=True)])


def _number(path: Path, row: int, column: str, cell: str) -> float:
    if not cell.strip():
        return np.nan
    try:
        number = float(cell)
    except ValueError:
        _refuse_cell(path, row, column, f"'{cell}' is not a number; put dates in a first column named 'date'")
    if not np.isfinite(number):
        _refuse_cell(path, row, column, f"'{cell}' is not a finite number")
    return number


def read_hdf5(path: Path) -> Table:
    """The only pandas data frame in an HDF5 file, in fixed format and of one dtype, as in METR-LA and PEMS-BAY."""
    h5py = import_extra("h5py", f"'{path}' needs h5py", "h5py")
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
        found = f"{values.dtype} of shape {values.shape} and {len(names)} names"
        raise SparsityError(f"'{path}' must hold numbers (rows, columns) and a name for each column, got {found}")
    columns = tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist())
    return Table(path=path, columns=columns, values=values.astype(np.float64), first_row=0)
