"""Speeds on roads over time, and the map of the roads, read from files."""

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsparse.errors import SparsityError, require_number, require_whole
from diffsparse.traffic.data.table import Table, csv_rows, read_csv, read_hdf5, refuse_cell


@dataclass(frozen=True, kw_only=True, eq=False)
class Speeds:
    """One speed per step and node; 0 if it is missing."""

    values: Tensor
    """(steps, nodes) float64, not negative."""
    names: tuple[str, ...]
    """The name of each node."""


def read_speeds(path: str | os.PathLike[str], *, zeros_missing: bool = False, slowest: float = 0.0) -> Speeds:
    """Speeds from a csv file with a header of node names and optionally a first column of dates, or from HDF5.

    Args:
        path: the file; if it ends in .h5, .hdf5 or .hdf, it is read as HDF5, which needs the `traffic` extra.
        zeros_missing: treat zeros and empty cells (NaN in HDF5) as missing values; by default they are errors.
        slowest: treat slower speeds as missing too. The relative error of a speed near zero would be huge.

    Raises:
        SparsityError: a row has another length, a cell is not a speed, a node never has a speed or two nodes have the
            same name; the message names the file and the place.
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
    """Means of the known speeds over every `steps` steps; an incomplete window at the end is left out.

    Example:
        >>> five_minutes = torch.tensor([[30.0], [50.0], [0.0], [20.0], [20.0], [20.0], [90.0]]).double()
        >>> resampled(Speeds(values=five_minutes, names=("bridge",)), 3).values.flatten().tolist()
        [40.0, 20.0]
    """
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
    return _linked(Path(path), table.values > 0)


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
        raise SparsityError(
            f"'{path}' must list different distances between the {len(names)} nodes {', '.join(names[:3])} ..., "
            f"got {len(listed)}{' that are all the same' if len(listed) > 1 else ''}"
        )
    return _linked(Path(path), np.exp(-np.square(distances / listed.std())) >= least_weight)


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


def _linked(path: Path, matrix: npt.NDArray[np.bool_]) -> Tensor:
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
            refuse_cell(path, row, "3", f"'{cells[2]}' is not a distance")
        yield cells[0].strip(), cells[1].strip(), distance
