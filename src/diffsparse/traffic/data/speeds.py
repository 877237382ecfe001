"""Speeds on roads over time, as read from a file."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from diffsparse.errors import SparsityError, require_number, require_whole
from diffsparse.traffic.data.hdf5 import ENDINGS, read_hdf5
from diffsparse.traffic.data.table import Table, read_csv


@dataclass(frozen=True, kw_only=True, eq=False)
class Speeds:
    """One speed a step and node; 0 is a missing one."""

    values: Tensor
    """(steps, nodes) float64, not negative."""
    names: tuple[str, ...]
    """What each node is called."""


def read_speeds(path: str | os.PathLike[str], *, zeros_missing: bool = False, slowest: float = 0.0) -> Speeds:
    """Speeds from a csv file with a header row of node names and perhaps a first column of dates, or from HDF5.

    Args:
        path: the file; one that ends in .h5, .hdf5 or .hdf is read as HDF5, which needs the `traffic` extra.
        zeros_missing: zeros and empty cells (in HDF5, NaN) are missing values; otherwise they are refused.
        slowest: slower speeds are missing values too. Beside a speed of nearly nothing every relative error is huge.

    Raises:
        SparsityError: a row of another length, a cell that is no speed, a node that never has one or two nodes of
            the same name; the message names the file and the place.
    """
    path = Path(path)
    table = read_hdf5(path) if path.suffix.lower() in ENDINGS else read_csv(path, header=True)
    return _speeds(table, zeros_missing, require_number("slowest", slowest, low=0))


def resampled(speeds: Speeds, steps: int) -> Speeds:
    """Means of the known speeds over each `steps` steps; what does not fill a window at the end is left out.

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


def _speeds(table: Table, zeros_missing: bool, slowest: float) -> Speeds:
    # numbers may be names of nodes, but hardly such as 51.5
    speeds = [name for name in table.columns if "." in name and _is_number(name)]
    if speeds:
        raise SparsityError(f"'{table.path}' must begin with a header of node names, got speeds such as {speeds[0]}")
    if "" in table.columns:
        raise SparsityError(f"'{table.path}': the header must name each node, got an empty name")
    if len(set(table.columns)) != len(table.columns):
        twice = next(name for name in table.columns if table.columns.count(name) > 1)
        raise SparsityError(f"'{table.path}': the header must name each node once, got '{twice}' twice")
    if table.values.size == 0:
        raise SparsityError(f"'{table.path}' holds no speeds")
    values = np.nan_to_num(table.values, nan=0.0, posinf=np.inf, neginf=-np.inf)
    table.refuse(~np.isfinite(values) | (values < 0), "is not a speed")
    if not zeros_missing:
        table.refuse(values == 0, "is not a speed; say so if zeros and empty cells are missing values: zeros_missing")
    values[values < slowest] = 0
    silent = np.flatnonzero(~values.any(0))
    if len(silent):
        raise SparsityError(f"'{table.path}', column '{table.columns[silent[0]]}': the node never has a speed")
    return Speeds(values=torch.from_numpy(values), names=table.columns)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
