"""The made-up traffic can be told apart from noise: neighbours help to predict a node, others do not."""

import numpy as np
import pytest
import torch

from diffsparse import SparsityError
from diffsparse.graphs import hop_counts
from diffsparse.traffic.data.synthetic import RoadNetwork, random_roads, simulate

LAGS = 3


@pytest.fixture(scope="module")
def network() -> RoadNetwork:
    return random_roads(40, seed=0)


@pytest.fixture(scope="module")
def speeds(network: RoadNetwork) -> np.ndarray:
    return simulate(network, weeks=6, seed=0)


def squared_error(speeds: np.ndarray, node: int, sources: list[int]) -> float:
    """Of the linear one-step prediction from the past of `sources`, fitted on the first half, on the second."""
    steps = len(speeds)
    past = [speeds[LAGS - lag : steps - lag, sources] for lag in range(1, LAGS + 1)]
    inputs = np.concatenate([*past, np.ones((steps - LAGS, 1))], axis=1)
    half = len(inputs) // 2
    weights = np.linalg.lstsq(inputs[:half], speeds[LAGS:][:half, node], rcond=None)[0]
    return float(np.square(inputs[half:] @ weights - speeds[LAGS:][half:, node]).mean())


def test_neighbours_tell_the_future_and_others_do_not(network: RoadNetwork, speeds: np.ndarray) -> None:
    random = np.random.default_rng(0)
    by_neighbours, by_others, beyond_neighbours = [], [], []
    for node in range(40):
        neighbours = np.flatnonzero(network.links[node])
        strangers = np.setdiff1d(np.flatnonzero(~network.links[node]), [node])
        others = random.choice(strangers, len(neighbours), replace=False)
        alone = squared_error(speeds, node, [node])
        with_neighbours = squared_error(speeds, node, [node, *neighbours])
        with_both = squared_error(speeds, node, [node, *neighbours, *others])
        by_neighbours.append(1 - with_neighbours / alone)
        by_others.append(1 - squared_error(speeds, node, [node, *others]) / alone)
        beyond_neighbours.append(1 - with_both / with_neighbours)
    assert np.mean(by_neighbours) > 0.12
    assert min(by_neighbours) > 0.02
    assert np.mean(by_others) < 0.02
    assert np.mean(beyond_neighbours) < 0.005


def test_nothing_is_common_to_all_nodes(network: RoadNetwork, speeds: np.ndarray) -> None:
    correlation = np.corrcoef(speeds.T)
    strangers = ~network.links & ~np.eye(40, dtype=bool)
    assert correlation[network.links].mean() > 3 * correlation[strangers].mean()
    assert correlation[strangers].mean() < 0.15


def test_the_map_is_found_by_plain_regression(network: RoadNetwork, speeds: np.ndarray) -> None:
    scaled = (speeds - speeds.mean(0)) / speeds.std(0)
    weights = np.linalg.lstsq(scaled[:-1], scaled[1:], rcond=None)[0]
    np.fill_diagonal(weights, 0)
    strongest = np.argsort(weights.flatten())[::-1][: network.links.sum()]
    assert network.links.flatten()[strongest].mean() > 0.95


def test_speeds_are_speeds(speeds: np.ndarray) -> None:
    assert speeds.shape == (6 * 672, 40)
    assert 3 < speeds.min() < 25
    assert 60 < speeds.max() < 90
    assert 0.6 < speeds.mean() / np.quantile(speeds, 0.99, axis=0).mean() < 0.95


def test_seed_decides(network: RoadNetwork) -> None:
    one = simulate(network, weeks=1, seed=3)
    assert np.array_equal(one, simulate(network, weeks=1, seed=3))
    assert not np.array_equal(one, simulate(network, weeks=1, seed=4))


def test_too_few_weeks_are_named(network: RoadNetwork) -> None:
    with pytest.raises(SparsityError, match="weeks must be a whole number of at least 1, got 0"):
        simulate(network, weeks=0, seed=0)


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
