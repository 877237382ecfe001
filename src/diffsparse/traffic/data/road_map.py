"""Which nodes a given map links."""

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsparse.errors import SparsityError, require_number
from diffsparse.traffic.data.table import csv_rows, read_csv, refuse_cell

LEAST_WEIGHT = 0.1


def read_adjacency(path: str | os.PathLike[str]) -> Tensor:
    """A bool matrix (nodes, nodes) from a csv file of weights without a header, True where one is above 0.

    The diagonal is False whatever the file says: a node is not linked to itself.
    """
    table = read_csv(Path(path), header=False)
    rows, columns = table.values.shape
    if rows != columns:
        raise SparsityError(f"'{path}': an adjacency must be square, got {rows} rows and {columns} columns")
    table.refuse(~(table.values >= 0), "is not a weight")
    return _linked(Path(path), table.values > 0)


def read_distances(path: str | os.PathLike[str], names: Sequence[str], *, least_weight: float = LEAST_WEIGHT) -> Tensor:
    r"""A bool matrix (nodes, nodes) from a csv file of road distances: from, to, distance; with or without a header.

    Two nodes are linked where the weight :math:`e^{-(d/s)^2}`, with s the standard deviation of the listed distances
    between the nodes of `names`, is at least `least_weight`; this is the usual map of METR-LA and PEMS-BAY. Entry
    [i, j] is the way from i to j. Rows about other nodes are passed over; the diagonal is False.
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
