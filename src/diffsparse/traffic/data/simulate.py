"""Made-up traffic in which congestion really travels along the links of a road network."""

import numpy as np

from diffsparse.errors import require_whole
from diffsparse.traffic.data.roads import RoadNetwork
from diffsparse.traffic.data.table import Floats

STEPS_A_DAY = 96
WORKING_DAYS = 5

# Shares of a node's congestion that a step later are still there, and with its neighbours; the rest has dissolved.
# A queue of which little stays would ask for weights off the diagonal only, unlike what detectors measure.
STAYS, MOVES_ON = 0.6, 0.35
# A node has about one incident a day.
INCIDENT_CHANCE = 0.01
# Steps of a day between which the queues of a rush hour begin: from half past six, and from half past three.
RUSH_HOURS = ((26, 40), (62, 78))
QUEUES = 4
# Share of the free speed that is lost in standing traffic, and the error of a measured speed relative to it.
SLOWDOWN, NOISE = 0.85, 0.015


def simulate(network: RoadNetwork, *, weeks: int, seed: int) -> Floats:
    r"""Speeds (steps, nodes) in km/h every 15 minutes, 672 steps a week.

    Congestion follows :math:`c_{t+1} = (0.6 + W)\, c_t + n_t`, where W moves 0.35 of it along the links, in uneven
    shares; a node with the free speed :math:`v_i` has the speed :math:`v_i (1 - 0.85\,(1 - e^{-c_i}))` and a little
    noise. New congestion n comes at one node at a time: from incidents at any hour, and from a few queues that begin
    at other nodes and times in every rush hour. So what a node's own past does not tell of its next speed is in the
    past of its neighbours, and no signal is common to all.
    """
    random = np.random.default_rng(seed)
    steps, nodes = 7 * STEPS_A_DAY * require_whole("weeks", weeks, low=1), len(network.links)
    shares = network.links * random.uniform(0.3, 1.0, (nodes, nodes))
    flow = STAYS * np.eye(nodes) + MOVES_ON * shares / shares.sum(0)
    free = random.uniform(45, 75, nodes)
    new = _incidents(random, steps, nodes) + _queues(random, steps, nodes)
    congestion = np.zeros((steps, nodes))
    for step in range(steps):
        congestion[step] = flow @ congestion[step - 1] + new[step]
    speeds = free * (1 - SLOWDOWN * (1 - np.exp(-congestion)))
    return speeds * np.exp(NOISE * random.standard_normal((steps, nodes)))


def _incidents(random: np.random.Generator, steps: int, nodes: int) -> Floats:
    happen = random.random((steps, nodes)) < INCIDENT_CHANCE
    return happen * random.uniform(0.5, 1.5, (steps, nodes))


def _queues(random: np.random.Generator, steps: int, nodes: int) -> Floats:
    begin = np.zeros((steps, nodes))
    for day in range(steps // STEPS_A_DAY):
        if day % 7 < WORKING_DAYS:
            for first, last in RUSH_HOURS:
                times = day * STEPS_A_DAY + random.integers(first, last, QUEUES)
                begin[times, random.integers(nodes, size=QUEUES)] += random.uniform(1, 2, QUEUES)
    return begin
