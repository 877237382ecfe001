"""Made-up traffic on a made-up road network, in which congestion really travels along the links."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diffsparse.errors import require_whole

Floats = npt.NDArray[np.float64]

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


@dataclass(frozen=True, kw_only=True, eq=False)
class RoadNetwork:
    """Nodes in the plane and the links between them."""

    places: Floats
    """(nodes, 2) in the unit square."""
    links: npt.NDArray[np.bool_]
    """(nodes, nodes), symmetric, False on the diagonal."""


def random_roads(nodes: int, seed: int) -> RoadNetwork:
    """Spread places over the unit square and link relative neighbours: the network is connected, and no links cross.

    Two nodes are linked unless a third one is closer to both of them than they are to each other.

    Example:
        >>> int(random_roads(3, seed=0).links.sum())
        4
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
    and times. So a node's next speed depends on its own past and on that of its neighbours, and there is no signal that
    all nodes share.
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
