"""Tables that pandas wrote as HDF5, the form of METR-LA and PEMS-BAY."""

from pathlib import Path
from typing import Any

import numpy as np

from diffsparse.errors import SparsityError
from diffsparse.traffic.data.table import Table

ENDINGS = (".h5", ".hdf5", ".hdf")


def read_hdf5(path: Path) -> Table:
    """The numbers and column names of the only data frame in the file, of one dtype and in pandas' fixed format.

    Needs the `traffic` extra.
    """
    try:
        import h5py
    except ImportError:
        raise SparsityError(f"'{path}' needs h5py; install it with: pip install 'diffsparse[traffic]'") from None
    try:
        with h5py.File(path, "r") as file:
            return _table(path, [node for node in file.values() if isinstance(node, h5py.Group)])
    except OSError as error:
        raise SparsityError(f"cannot read '{path}' as HDF5: {error}") from error


def _table(path: Path, groups: list[Any]) -> Table:
    frames = [group for group in groups if "block0_values" in group and "block0_items" in group]
    if len(frames) != 1 or "block1_values" in frames[0]:
        raise SparsityError(f"'{path}' must hold one pandas data frame in fixed format, of one dtype")
    values, names = frames[0]["block0_values"][()], frames[0]["block0_items"][()]
    if values.ndim != 2 or values.shape[1:] != names.shape or values.dtype.kind not in "fiu":
        raise SparsityError(
            f"'{path}' must hold numbers (rows, columns) and a name for each column, "
            f"got {values.dtype} of shape {values.shape} and {len(names)} names"
        )
    columns = tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist())
    return Table(path=path, columns=columns, values=values.astype(np.float64), first_row=0)
