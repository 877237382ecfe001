import math
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from diffsparse import SparsityError
from diffsparse.traffic.reading import Speeds, read_adjacency, read_distances, read_speeds, resampled


def written(folder: Path, text: str, name: str = "speed.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_speeds_without_gaps(tmp_path: Path) -> None:
    speeds = read_speeds(written(tmp_path, "773869,767541\n64.375,67.625\n62.6,68.5\n"))
    assert speeds.names == ("773869", "767541")
    assert speeds.values.tolist() == [[64.375, 67.625], [62.6, 68.5]]


def test_zeros_and_empty_cells_are_missing_when_told(tmp_path: Path) -> None:
    path = written(tmp_path, "date,a,b\n1/1/2015,0,10\n2/1/2015,20,\n")
    assert read_speeds(path, zeros_missing=True).values.tolist() == [[0, 10], [20, 0]]
    with pytest.raises(SparsityError, match=r"row 2, column 'a': 0 is not a speed; .*zeros_missing"):
        read_speeds(path)


def test_an_empty_cell_is_refused_unless_told(tmp_path: Path) -> None:
    with pytest.raises(SparsityError, match="row 3, column 'b': an empty cell is not a speed"):
        read_speeds(written(tmp_path, "a,b\n1,10\n20,\n"))


def test_a_header_is_not_forgotten(tmp_path: Path) -> None:
    with pytest.raises(SparsityError, match=r"must begin with a header of node names, got speeds such as 62\.25"):
        read_speeds(written(tmp_path, "62.25,71.5\n60.0,70.0\n"))
    with pytest.raises(SparsityError, match=r"got speeds such as 71\.5"):
        read_speeds(written(tmp_path, "0,71.5\n60.0,70.0\n"))
    with pytest.raises(SparsityError, match="the header must name each node, got an empty name"):
        read_speeds(written(tmp_path, "a,,b\n60.0,70.0,50.0\n"))
    assert read_speeds(written(tmp_path, "773869,1\n60.0,70.0\n")).names == ("773869", "1")


def test_speeds_of_nearly_nothing_are_missing(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b\n0.5,10\n1,2.4e-17\n")
    assert read_speeds(path, slowest=1.0).values.tolist() == [[0, 10], [1, 0]]
    with pytest.raises(SparsityError, match="column 'a': the node never has a speed"):
        read_speeds(path, slowest=2.0)
    with pytest.raises(SparsityError, match="slowest"):
        read_speeds(path, slowest=-1.0)


@pytest.mark.parametrize("zeros_missing", [False, True])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,-0.5\n", "row 3, column 'b': -0.5 is not a speed"),
        ("a,b\n1,nan\n", "row 2, column 'b': 'nan'"),
        ("a,a\n1,2\n", "must name each node once, got 'a' twice"),
        ("a,b\n", "holds no speeds"),
        ("date\n1/1/2015\n", "holds no speeds"),
    ],
)
def test_wrong_speeds_are_refused_with_and_without_gaps(
    tmp_path: Path, text: str, message: str, zeros_missing: bool
) -> None:
    with pytest.raises(SparsityError, match=message):
        read_speeds(written(tmp_path, text), zeros_missing=zeros_missing)


@pytest.mark.parametrize("text", ["a,b,c\n1,0,2\n3,0,0\n", "a,b,c\n1,,2\n3,0,0\n"])
def test_a_node_without_any_speed_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(SparsityError, match="column 'b': the node never has a speed"):
        read_speeds(written(tmp_path, text), zeros_missing=True)


def test_nan_of_hdf5_is_a_missing_speed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "speed.h5", "w") as file:
        file["df/block0_items"] = np.array([b"a", b"b"])
        file["df/block0_values"] = np.array([[50.0, np.nan], [0.0, 60.0]])
    speeds = read_speeds(tmp_path / "speed.h5", zeros_missing=True)
    assert speeds.names == ("a", "b")
    assert speeds.values.tolist() == [[50, 0], [0, 60]]
    with pytest.raises(SparsityError, match="row 0, column 'b': an empty cell is not a speed"):
        read_speeds(tmp_path / "speed.h5")


def test_infinity_of_hdf5_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "speed.h5", "w") as file:
        file["df/block0_items"] = np.array([b"a"])
        file["df/block0_values"] = np.array([[50.0], [np.inf]])
    with pytest.raises(SparsityError, match="row 1, column 'a': inf is not a speed"):
        read_speeds(tmp_path / "speed.h5", zeros_missing=True)


def test_resampling_averages_what_is_known_and_drops_the_rest() -> None:
    values = torch.tensor([[10.0, 0], [20, 0], [60, 0], [30, 5], [0, 0], [40, 7], [99, 99], [99, 99]]).double()
    means = resampled(Speeds(values=values, names=("a", "b")), 3)
    assert means.values.tolist() == [[30, 0], [35, 6]]
    assert means.names == ("a", "b")


def test_resampling_by_one_changes_nothing() -> None:
    values = torch.tensor([[10.0, 0], [20, 3]]).double()
    assert torch.equal(resampled(Speeds(values=values, names=("a", "b")), 1).values, values)
    with pytest.raises(SparsityError, match="steps must be a whole number of at least 1, got 0"):
        resampled(Speeds(values=values, names=("a", "b")), 0)


def test_adjacency_is_true_where_a_weight_is_above_zero_off_the_diagonal(tmp_path: Path) -> None:
    linked = read_adjacency(written(tmp_path, "1,0.26,0\n0,0,0\n1e-9,0,1\n", "map.csv"))
    assert linked.tolist() == [[False, True, False], [False, False, False], [True, False, False]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1\n1,0\n0,0\n", "must be square, got 3 rows and 2 columns"),
        ("0,1,0\n1,0,0\n", "must be square, got 2 rows and 3 columns"),
        ("0,1\n-1,0\n", "row 2, column '1': -1 is not a weight"),
        ("1,0\n0,1\n", "map.csv' links no two nodes"),
        ("0,\n1,0\n", "row 1, column '2': an empty cell is not a weight"),
        ("0,nan\n1,0\n", "row 1, column '2': 'nan'"),
        ("a,b\n0,1\n1,0\n", "row 1, column '1': 'a' is not a number"),
        ("0,1\n1\n", "row 2: 1 cells"),
    ],
)
def test_wrong_adjacencies_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SparsityError, match=message):
        read_adjacency(written(tmp_path, text, "map.csv"))


DISTANCES = "7,7,0.0\n8,8,0.0\n9,9,0.0\n7,8,1000.0\n8,7,5000.0\n8,9,400.5\n7,5,1.0\n"


@pytest.mark.parametrize("header", ["", "from,to,cost\n"])
def test_near_nodes_are_linked_in_their_direction(tmp_path: Path, header: str) -> None:
    linked = read_distances(written(tmp_path, header + DISTANCES, "map.csv"), ["9", "7", "8"])
    listed = [0, 0, 0, 1000, 5000, 400.5]
    mean = sum(listed) / 6
    variance = sum((distance - mean) ** 2 for distance in listed) / 6
    reach = math.sqrt(-math.log(0.1) * variance)
    assert 1000 < reach < 5000
    assert linked.int().tolist() == [[0, 0, 0], [0, 0, 1], [1, 0, 0]]


def test_least_weight_moves_the_border(tmp_path: Path) -> None:
    path = written(tmp_path, DISTANCES, "map.csv")
    assert int(read_distances(path, ["9", "7", "8"], least_weight=1e-6).sum()) == 3
    assert int(read_distances(path, ["9", "7", "8"], least_weight=0.9).sum()) == 1
    with pytest.raises(SparsityError, match="least_weight must be a finite number above 0"):
        read_distances(path, ["9", "7", "8"], least_weight=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("7,8\n", "row 1: 2 cells instead of from, to and distance"),
        ("7,8,1\n8,7,far\n", "row 2, column '3': 'far' is not a distance"),
        ("7,8,1\n8,7,-1\n", "row 2, column '3': '-1' is not a distance"),
        ("7,8,1\n8,7,inf\n", "row 2, column '3': 'inf' is not a distance"),
        ("1,2,3\n", "must list different distances between the 2 nodes 7, 8"),
        ("7,8,3\n", "must list different distances"),
        ("", "must list different distances"),
    ],
)
def test_wrong_distances_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SparsityError, match=message):
        read_distances(written(tmp_path, text, "map.csv"), ["7", "8"])
