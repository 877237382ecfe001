"""Traffic data sets by name, and from any pair of files."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from diffsparse.errors import SparsityError, require_whole
from diffsparse.traffic.data.dataset import HISTORY, TrafficDataSet, traffic_data
from diffsparse.traffic.data.road_map import read_adjacency, read_distances
from diffsparse.traffic.data.roads import random_roads
from diffsparse.traffic.data.simulate import simulate
from diffsparse.traffic.data.speeds import Speeds, read_speeds, resampled

MINUTES = 15
"""From one step of a data set to the next."""
SYNTHETIC = "synthetic-roads"
SYNTHETIC_NODES, SYNTHETIC_WEEKS, SYNTHETIC_SEED = 40, 2, 0


@dataclass(frozen=True, kw_only=True)
class TrafficFiles:
    """How the files of a traffic data set are read."""

    minutes: int = MINUTES
    """From one row of speeds to the next: 15 or a part of it, which is then averaged."""
    zeros_missing: bool = False
    """Zeros and empty cells are missing values; otherwise they are refused."""
    slowest: float = 0.0
    """Slower speeds are missing values, too."""
    distances: bool = False
    """The map is a list of distances (`read_distances`), not a matrix (`read_adjacency`)."""

    def __post_init__(self) -> None:
        if MINUTES % require_whole("minutes", self.minutes, low=1):
            raise SparsityError(f"minutes must be {MINUTES} or a whole part of it, got {self.minutes}")


_PUBLIC = TrafficFiles(minutes=5, zeros_missing=True, distances=True)
_NAMED = {
    "los-loop": ("los_speed.csv", "los_adj.csv", TrafficFiles(minutes=5)),
    "sz-taxi-40": ("sz_speed.csv", "sz_adj.csv", TrafficFiles(zeros_missing=True, slowest=1.0)),
    "metr-la": ("metr-la.h5", "distances_la_2012.csv", _PUBLIC),
    "pems-bay": ("pems-bay.h5", "distances_bay_2017.csv", _PUBLIC),
}

OWN = "roads"
"""A folder of one's own, with these two files."""
_OWN_FILES = ("speeds.csv", "map.csv", TrafficFiles(zeros_missing=True))

TRAFFIC_NAMES = (*_NAMED, SYNTHETIC, OWN)
"""What `open_traffic` knows."""


def open_traffic(name: str, root: Path | None = None, *, history: int = HISTORY) -> TrafficDataSet:
    """A traffic data set in steps of 15 minutes.

    Args:
        name: one of `TRAFFIC_NAMES`.
        root: the folder with a folder `name` that holds the files. "synthetic-roads" needs none: its map is known
            exactly, and its traffic is made when it is opened, always the same. For "roads" it is the folder with
            your speeds.csv, a row every 15 minutes in which zeros are missing values, and map.csv, a matrix.
        history: how many past steps a model sees.

    Example:
        >>> roads = open_traffic("synthetic-roads")
        >>> roads.input_shape, len(roads.train), int(roads.adjacency.sum())
        ((8, 40), 960, 102)
    """
    if name == SYNTHETIC:
        return _synthetic(history)
    if name not in TRAFFIC_NAMES:
        raise SparsityError(f"there is no traffic data set '{name}'; there are {', '.join(TRAFFIC_NAMES)}")
    if root is None:
        raise SparsityError(f"{name} needs the folder it lies in: give a root")
    speeds, road_map, files = _OWN_FILES if name == OWN else _NAMED[name]
    folder = Path(root) if name == OWN else Path(root) / name
    return open_traffic_files(folder / speeds, folder / road_map, name=name, files=files, history=history)


def open_traffic_files(
    speeds: str | os.PathLike[str],
    road_map: str | os.PathLike[str],
    *,
    name: str | None = None,
    files: TrafficFiles | None = None,
    history: int = HISTORY,
) -> TrafficDataSet:
    """A traffic data set in steps of 15 minutes from any two files.

    Args:
        speeds: csv with a header row of node names and perhaps a first column of dates, or HDF5 written by pandas.
        road_map: csv, one row a node in the order of the speeds and no header, above 0 where two nodes are linked;
            or a list of distances.
        name: what to call it; the name of the file of speeds otherwise.
        files: how to read them; 15 minutes, nothing missing and a matrix otherwise.
        history: how many past steps a model sees.
    """
    files = files or TrafficFiles()
    known = read_speeds(speeds, zeros_missing=files.zeros_missing, slowest=files.slowest)
    read = resampled(known, MINUTES // files.minutes)
    linked = read_distances(road_map, read.names) if files.distances else read_adjacency(road_map)
    if len(linked) != len(read.names):
        raise SparsityError(f"'{speeds}' has speeds of {len(read.names)} nodes, '{road_map}' is a map of {len(linked)}")
    try:
        return traffic_data(name or Path(speeds).stem, read, linked, history=history)
    except SparsityError as error:
        raise SparsityError(f"'{speeds}': {error}") from error


def _synthetic(history: int) -> TrafficDataSet:
    network = random_roads(SYNTHETIC_NODES, SYNTHETIC_SEED)
    speeds = Speeds(
        values=torch.from_numpy(simulate(network, weeks=SYNTHETIC_WEEKS, seed=SYNTHETIC_SEED)),
        names=tuple(str(node) for node in range(SYNTHETIC_NODES)),
    )
    places = torch.from_numpy(network.places).float()
    return traffic_data(SYNTHETIC, speeds, torch.from_numpy(network.links), history=history, positions=places)
