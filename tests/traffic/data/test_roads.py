import numpy as np
import pytest
import torch

from diffsparse import SparsityError
from diffsparse.graphs import hop_counts
from diffsparse.traffic.data.roads import random_roads


def crossings(places: np.ndarray, links: np.ndarray) -> int:
    """Pairs of links that share no node and cross."""

    def side(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> bool:
        return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]) > 0

    segments = [(i, j) for i, j in np.argwhere(links) if i < j]
    count = 0
    for number, (a, b) in enumerate(segments):
        for c, d in segments[number + 1 :]:
            if len({a, b, c, d}) == 4:
                p, q, r, s = (places[node] for node in (a, b, c, d))
                count += side(p, q, r) != side(p, q, s) and side(r, s, p) != side(r, s, q)
    return count


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_network_is_planar_connected_and_sparse(seed: int) -> None:
    network = random_roads(40, seed)
    assert np.array_equal(network.links, network.links.T)
    assert not network.links.diagonal().any()
    assert crossings(network.places, network.links) == 0
    assert hop_counts(torch.from_numpy(network.links)).isfinite().all()
    assert 2 < network.links.sum(1).mean() < 3.5


def test_links_are_those_of_relative_neighbours() -> None:
    network = random_roads(15, seed=4)
    apart = np.linalg.norm(network.places[:, None] - network.places[None], axis=-1)
    for i in range(15):
        for j in range(15):
            nearer = [k for k in range(15) if max(apart[i, k], apart[j, k]) < apart[i, j]]
            assert network.links[i, j] == (i != j and not nearer)


def test_places_are_spread_and_the_seed_decides() -> None:
    network = random_roads(40, seed=0)
    apart = np.linalg.norm(network.places[:, None] - network.places[None], axis=-1) + 9 * np.eye(40)
    assert apart.min() > 0.05
    assert np.array_equal(network.places, random_roads(40, seed=0).places)
    assert not np.array_equal(network.places, random_roads(40, seed=1).places)


def test_too_few_nodes_are_named() -> None:
    with pytest.raises(SparsityError, match="nodes must be a whole number of at least 2, got 1"):
        random_roads(1, seed=0)
