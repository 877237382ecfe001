"""Where traffic data comes from: public data sets by name, your own files, or a simulation."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from diffsparse.errors import SparsityError, require_whole
from diffsparse.traffic.data import HISTORY, TrafficDataSet, traffic_data
from diffsparse.traffic.reading import Speeds, read_adjacency, read_distances, read_speeds, resampled

Name = str | os.PathLike[str]
Floats = npt.NDArray[np.float64]

# Length of a step.
MINUTES = 15
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
    speeds: Name, road_map: Name, *, name: str | None = None, files: TrafficFiles | None = None, history: int = HISTORY
) -> TrafficDataSet:
    """A traffic data set in steps of 15 minutes from any two files.

    Args:
        speeds: for `read_speeds`.
        road_map: for `read_adjacency`, with one row per node in the order of the speeds, or for `read_distances`.
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
    speeds = Speeds(values=values, names=tuple(map(str, range(SYNTHETIC_NODES))))
    places = torch.from_numpy(network.places).float()
    return traffic_data(SYNTHETIC, speeds, torch.from_numpy(network.links), history=history, positions=places)


CANDIDATES = 10
STEPS_PER_DAY = 96
WORKING_DAYS = 5
# Shares of a node's congestion that stay and that move on to its neighbours in one step; the rest dissolves.
# If little stayed, only weights off the diagonal would help, unlike in measured traffic.
STAYS, MOVES_ON = 0.6, 0.35
# About one incident per node and day.
INCIDENT_CHANCE = 0.01
# Steps of the day between which rush-hour queues begin: from half past six, and from half past three.
RUSH_HOURS = ((26, 40), (62, 78))
QUEUES = 4
# Share of the free speed that is lost in standing traffic, and relative error of a measured speed.
SLOWDOWN, NOISE = 0.85, 0.015


class RoadNetwork(NamedTuple):
    """Places (nodes, 2) in the unit square, and symmetric links (nodes, nodes), False on the diagonal."""

    places: Floats
    links: npt.NDArray[np.bool_]


def random_roads(nodes: int, seed: int) -> RoadNetwork:
    """Spread places over the unit square and link relative neighbours: the network is connected, and no links cross.

    Two nodes are linked unless a third one is closer to both of them than they are to each other.
    """
    random = np.random.default_rng(seed)
    require_whole("nodes", nodes, low=2)
    places = random.random((1, 2))
    while len(places) < nodes:
        # of several candidates, the one farthest from all places so far
        candidates = random.random((CANDIDATES, 2))
        nearest = np.linalg.norm(candidates[:, None] - places[None], axis=-1).min(1)
        places = np.vstack([places, candidates[nearest.argmax()]])
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    farther_of_two = np.maximum(apart[:, None, :], apart[None, :, :])
    between = (farther_of_two < apart[:, :, None]).any(-1)
    return RoadNetwork(places=places, links=~between & ~np.eye(nodes, dtype=np.bool_))


def simulate(network: RoadNetwork, *, weeks: int, seed: int) -> Floats:
    r"""Speeds (steps, nodes) in km/h every 15 minutes, 672 steps per week.

    Congestion follows :math:`c_{t+1} = (0.6 + W)\, c_t + n_t`, where W moves 0.35 of it along the links in uneven
    shares. A node with free speed :math:`v_i` has the speed :math:`v_i (1 - 0.85\,(1 - e^{-c_i}))` with a little noise.
    New congestion n appears at single nodes: incidents at any time, and in each rush hour a few queues at random nodes
    and times. So a node's next speed depends on its own past and its neighbours', and all nodes share no signal.
    """
    random = np.random.default_rng(seed)
    steps, nodes = 7 * STEPS_PER_DAY * require_whole("weeks", weeks, low=1), len(network.links)
    shares = network.links * random.uniform(0.3, 1.0, (nodes, nodes))
    flow = STAYS * np.eye(nodes) + MOVES_ON * shares / shares.sum(0)
    free = random.uniform(45, 75, nodes)
    incidents = (random.random((steps, nodes)) < INCIDENT_CHANCE) * random.uniform(0.5, 1.5, (steps, nodes))
    new = incidents + _queues(random, steps, nodes)
    congestion = np.zeros((steps, nodes))
    for step in range(steps):
        congestion[step] = flow @ congestion[step - 1] + new[step]
    speeds = free * (1 - SLOWDOWN * (1 - np.exp(-congestion)))
    return speeds * np.exp(NOISE * random.standard_normal((steps, nodes)))


def _queues(random: np.random.Generator, steps: int, nodes: int) -> Floats:
    begin = np.zeros((steps, nodes))
    for day in range(steps // STEPS_PER_DAY):
        if day % 7 < WORKING_DAYS:
            for first, last in RUSH_HOURS:
                times = day * STEPS_PER_DAY + random.integers(first, last, QUEUES)
                begin[times, random.integers(nodes, size=QUEUES)] += random.uniform(1, 2, QUEUES)
    return begin
