import math
from pathlib import Path

import pytest

from diffsparse import SparsityError
from diffsparse.traffic.data import read_adjacency, read_distances


def written(folder: Path, text: str) -> Path:
    path = folder / "map.csv"
    path.write_text(text)
    return path


def test_adjacency_is_true_where_a_weight_is_above_zero_off_the_diagonal(tmp_path: Path) -> None:
    linked = read_adjacency(written(tmp_path, "1,0.26,0\n0,0,0\n1e-9,0,1\n"))
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
        read_adjacency(written(tmp_path, text))


DISTANCES = "7,7,0.0\n8,8,0.0\n9,9,0.0\n7,8,1000.0\n8,7,5000.0\n8,9,400.5\n7,5,1.0\n"


@pytest.mark.parametrize("header", ["", "from,to,cost\n"])
def test_near_nodes_are_linked_in_their_direction(tmp_path: Path, header: str) -> None:
    linked = read_distances(written(tmp_path, header + DISTANCES), ["9", "7", "8"])
    listed = [0, 0, 0, 1000, 5000, 400.5]
    mean = sum(listed) / 6
    variance = sum((distance - mean) ** 2 for distance in listed) / 6
    reach = math.sqrt(-math.log(0.1) * variance)
    assert 1000 < reach < 5000
    assert linked.int().tolist() == [[0, 0, 0], [0, 0, 1], [1, 0, 0]]


def test_least_weight_moves_the_border(tmp_path: Path) -> None:
    path = written(tmp_path, DISTANCES)
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
        read_distances(written(tmp_path, text), ["7", "8"])
