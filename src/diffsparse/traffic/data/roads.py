"""A made-up road network in the plane."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diffsparse.errors import require_whole

CANDIDATES = 10


@dataclass(frozen=True, kw_only=True, eq=False)
class RoadNetwork:
    """Nodes with their places and the links between them."""

    places: npt.NDArray[np.float64]
    """(nodes, 2) in the unit square."""
    links: npt.NDArray[np.bool_]
    """(nodes, nodes), symmetric, nothing on the diagonal."""


def random_roads(nodes: int, seed: int) -> RoadNetwork:
    """Places spread over the unit square, linked as relative neighbours: no two links cross, all hang together.

    Two nodes are linked unless a third is nearer to both of them than they are to each other.

    Example:
        >>> int(random_roads(3, seed=0).links.sum())
        4
    """
    places = _spread_places(require_whole("nodes", nodes, low=2), np.random.default_rng(seed))
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    farther_of_two = np.maximum(apart[:, None, :], apart[None, :, :])
    between = (farther_of_two < apart[:, :, None]).any(-1)
    return RoadNetwork(places=places, links=~between & ~np.eye(nodes, dtype=np.bool_))


def _spread_places(nodes: int, random: np.random.Generator) -> npt.NDArray[np.float64]:
    """Each next place is the candidate farthest from the places so far."""
    places = random.random((1, 2))
    while len(places) < nodes:
        candidates = random.random((CANDIDATES, 2))
        nearest = np.linalg.norm(candidates[:, None] - places[None], axis=-1).min(1)
        places = np.vstack([places, candidates[nearest.argmax()]])
    return places
