"""Traffic data sets by name, and from any pair of files."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from diffsparse.errors import SparsityError, require_whole
from diffsparse.traffic.data.dataset import HISTORY, TrafficDataSet, traffic_data
from diffsparse.traffic.data.reading import Speeds, read_adjacency, read_distances, read_speeds, resampled
from diffsparse.traffic.data.synthetic import random_roads, simulate

MINUTES = 15
"""Length of a step of a data set."""
SYNTHETIC, OWN = "synthetic-roads", "roads"
SYNTHETIC_NODES, SYNTHETIC_WEEKS, SYNTHETIC_SEED = 40, 2, 0


@dataclass(frozen=True, kw_only=True)
class TrafficFiles:
    """How to read the files of a traffic data set."""

    minutes: int = MINUTES
    """Minutes between rows of speeds: 15, or a divisor of 15, in which case rows are averaged."""
    zeros_missing: bool = False
    """Whether zeros and empty cells are missing values; otherwise they are errors."""
    slowest: float = 0.0
    """Slower speeds are missing values too."""
    distances: bool = False
    """Whether the map is a list of distances (`read_distances`) instead of a matrix (`read_adjacency`)."""

    def __post_init__(self) -> None:
        if MINUTES % require_whole("minutes", self.minutes, low=1):
            raise SparsityError(f"minutes must be {MINUTES} or a divisor of it, got {self.minutes}")


_PUBLIC = TrafficFiles(minutes=5, zeros_missing=True, distances=True)
_FILES = {
    "los-loop": ("los_speed.csv", "los_adj.csv", TrafficFiles(minutes=5)),
    "sz-taxi-40": ("sz_speed.csv", "sz_adj.csv", TrafficFiles(zeros_missing=True, slowest=1.0)),
    "metr-la": ("metr-la.h5", "distances_la_2012.csv", _PUBLIC),
    "pems-bay": ("pems-bay.h5", "distances_bay_2017.csv", _PUBLIC),
    OWN: ("speeds.csv", "map.csv", TrafficFiles(zeros_missing=True)),
}

TRAFFIC_NAMES = (*(name for name in _FILES if name != OWN), SYNTHETIC, OWN)
"""The names that `open_traffic` takes."""


def open_traffic(name: str, root: Path | None = None, *, history: int = HISTORY) -> TrafficDataSet:
    """A traffic data set in steps of 15 minutes.

    Args:
        name: one of `TRAFFIC_NAMES`.
        root: the folder that contains a folder `name` with the files. For "roads" it is the folder with your own
            speeds.csv, one row every 15 minutes with zeros for missing values, and map.csv, a matrix.
            "synthetic-roads" needs no files: it is generated, always the same, with a map that is known exactly.
        history: number of past steps that a model sees.

    Example:
        >>> roads = open_traffic("synthetic-roads")
        >>> roads.input_shape, len(roads.train), int(roads.adjacency.sum())
        ((8, 40), 960, 102)
    """
    if name == SYNTHETIC:
        return _synthetic(history)
    if name not in _FILES:
        raise SparsityError(f"there is no traffic data set '{name}'; there are {', '.join(TRAFFIC_NAMES)}")
    if root is None:
        raise SparsityError(f"{name} needs the folder that contains it: pass root")
    speeds, road_map, files = _FILES[name]
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
        speeds: csv with a header of node names and optionally a first column of dates, or HDF5 written by pandas.
        road_map: csv without a header, one row per node in the order of the speeds, above 0 where two nodes are linked;
            or a list of distances.
        name: the name of the data set; by default that of the file of speeds.
        files: how to read the files; by default rows are 15 minutes apart, nothing is missing and the map is a matrix.
        history: number of past steps that a model sees.
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
    values = torch.from_numpy(simulate(network, weeks=SYNTHETIC_WEEKS, seed=SYNTHETIC_SEED))
    speeds = Speeds(values=values, names=tuple(str(node) for node in range(SYNTHETIC_NODES)))
    places = torch.from_numpy(network.places).float()
    return traffic_data(SYNTHETIC, speeds, torch.from_numpy(network.links), history=history, positions=places)
