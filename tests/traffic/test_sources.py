"""Data sets by name; and made-up traffic, where neighbours help to predict a node and others do not."""

import os
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from diffsparse import SparsityError
from diffsparse.graphs import hop_counts, within_hops
from diffsparse.traffic.sources import (
    TRAFFIC_NAMES,
    RoadNetwork,
    TrafficFiles,
    open_traffic,
    open_traffic_files,
    random_roads,
    simulate,
)

ROOT = os.environ.get("DIFFSPARSE_DATA")
with_data = pytest.mark.skipif(
    ROOT is None or not Path(ROOT, "los-loop").is_dir(), reason="needs the traffic files under DIFFSPARSE_DATA"
)


def write_pair(folder: Path, speeds: np.ndarray, linked: str = "0,1\n1,0\n") -> tuple[Path, Path]:
    rows = "".join(",".join(f"{value:g}" for value in row) + "\n" for row in speeds)
    (folder / "speed.csv").write_text("a,b\n" + rows)
    (folder / "adj.csv").write_text(linked)
    return folder / "speed.csv", folder / "adj.csv"


def test_any_pair_of_files(tmp_path: Path) -> None:
    speeds = np.arange(400).reshape(200, 2) + 1
    data = open_traffic_files(*write_pair(tmp_path, speeds))
    assert data.name == "speed"
    assert data.node_names == ("a", "b")
    assert data.adjacency.tolist() == [[False, True], [True, False]]
    assert np.array_equal(data.train.known, speeds[:144])


def test_shorter_steps_are_averaged_and_gaps_allowed_when_told(tmp_path: Path) -> None:
    speeds = np.tile([[30.0, 10.0], [0.0, 10.0], [50.0, 40.0]], (200, 1))
    files = TrafficFiles(minutes=5, zeros_missing=True)
    data = open_traffic_files(*write_pair(tmp_path, speeds), name="mine", files=files, history=3)
    assert data.name == "mine"
    assert data.input_shape == (3, 2)
    assert len(data.train.known) == 144
    assert torch.equal(data.train.known.unique(dim=0), torch.tensor([[40.0, 20.0]]))


def test_maps_of_another_size_and_unknown_steps_are_named(tmp_path: Path) -> None:
    pair = write_pair(tmp_path, np.ones((200, 2)), linked="0,1,0\n1,0,0\n0,0,0\n")
    with pytest.raises(SparsityError, match=r"speed.csv' has speeds of 2 nodes, '.*' is a map of 3"):
        open_traffic_files(*pair)
    for minutes in (0, 4, 30):
        with pytest.raises(SparsityError, match=f"got {minutes}"):
            TrafficFiles(minutes=minutes)


@pytest.mark.parametrize("name", ["metr-la", "pems-bay"])
def test_public_hdf5_sets_are_found_under_the_root(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    speeds = np.full((600, 3), 60.0)
    speeds[5, 1] = 0
    with h5py.File(folder / f"{name}.h5", "w") as file:
        file["speed/block0_items"] = np.array([7, 8, 9])
        file["speed/block0_values"] = speeds
    distances = {"metr-la": "distances_la_2012.csv", "pems-bay": "distances_bay_2017.csv"}[name]
    (folder / distances).write_text("7,8,100\n8,9,120\n7,9,9000\n")
    data = open_traffic(name, tmp_path)
    assert data.node_names == ("7", "8", "9")
    assert data.adjacency.int().tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]
    assert len(data.train) + len(data.validation) + len(data.test) == 200 - 3 * 8


def test_synthetic_roads_are_always_the_same_and_connected() -> None:
    data, again = (open_traffic("synthetic-roads") for _ in range(2))
    assert torch.equal(data.test.speeds, again.test.speeds)
    assert data.positions.shape == (40, 2)
    assert hop_counts(data.adjacency).isfinite().all()
    assert (data.train.known > 0).all()
    assert open_traffic("synthetic-roads", history=12).input_shape == (12, 40)


def test_unknown_names_and_missing_roots_are_named(tmp_path: Path) -> None:
    with pytest.raises(SparsityError, match="no traffic data set 'tokyo'; there are los-loop, sz-taxi-40, metr-la"):
        open_traffic("tokyo", tmp_path)
    for name in set(TRAFFIC_NAMES) - {"synthetic-roads"}:
        with pytest.raises(SparsityError, match=f"{name} needs the folder"):
            open_traffic(name)
        with pytest.raises(SparsityError, match=f"cannot read .*{'speeds.csv' if name == 'roads' else name}"):
            open_traffic(name, tmp_path)


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    known = np.random.default_rng(0).uniform(20, 60, (120, 3)).round(1)
    known[5, 1] = 0
    rows = "\n".join(",".join(map(str, row)) for row in known)
    (tmp_path / "speeds.csv").write_text(f"north,south,ring\n{rows}\n")
    (tmp_path / "map.csv").write_text("0,1,0\n1,0,1\n0,1,0\n")
    data = open_traffic("roads", tmp_path)
    assert (data.name, data.node_names) == ("roads", ("north", "south", "ring"))
    assert data.adjacency.tolist() == [[False, True, False], [True, False, True], [False, True, False]]
    parts = (data.train, data.validation, data.test)
    assert torch.cat([part.known for part in parts]).numpy() == pytest.approx(known)


@with_data
def test_los_loop() -> None:
    folder = Path(ROOT, "los-loop")
    raw = np.loadtxt(folder / "los_speed.csv", delimiter=",", skiprows=1)
    weights = np.loadtxt(folder / "los_adj.csv", delimiter=",")
    assert raw.shape == (2016, 207)
    assert (np.count_nonzero(raw == 0), raw.min() >= 1, raw.max()) == (0, True, 70)
    data = open_traffic("los-loop", Path(ROOT))
    assert data.input_shape == (8, 207)
    assert len(set(data.node_names)) == 207
    parts = [data.train, data.validation, data.test]
    assert [len(part.known) for part in parts] == [484, 53, 135]
    means = raw.reshape(672, 3, 207).mean(1)
    assert np.allclose(torch.cat([part.known for part in parts]), means, rtol=1e-6)
    assert all(torch.equal(part.speeds, part.known) for part in parts)
    assert data.mean == pytest.approx(means[:484].mean())
    assert raw.mean() == pytest.approx(58.9, abs=0.05)
    assert int(within_hops(data.adjacency).sum()) == 2833 == np.count_nonzero(weights)
    assert torch.equal(data.adjacency, data.adjacency.mT)


@with_data
def test_sz_taxi() -> None:
    data = open_traffic("sz-taxi-40", Path(ROOT))
    known = torch.cat([part.known for part in (data.train, data.validation, data.test)])
    assert known.shape == (2976, 40)
    missing = (known == 0).float()
    # 6.1 % are zeros, and 1.8 % are slower than 1 km/h
    assert missing.mean().item() == pytest.approx(0.0795, abs=5e-4)
    assert int((missing.mean(0) > 0.5).sum()) == 3
    assert known.max().item() == pytest.approx(80.5, abs=0.05)
    for part in (data.train, data.validation, data.test):
        assert (part.speeds > 0).all()
        assert torch.equal(part.speeds[part.known > 0], part.known[part.known > 0])
    assert int(data.adjacency.sum()) == 95
    assert int((~(data.adjacency | data.adjacency.mT).any(0)).sum()) == 4
    with pytest.raises(SparsityError, match=r"sz_speed\.csv', row 2, column '90224': 0 is not a speed"):
        open_traffic_files(Path(ROOT, "sz-taxi-40", "sz_speed.csv"), Path(ROOT, "sz-taxi-40", "sz_adj.csv"))


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
