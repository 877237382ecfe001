from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from diffsparse import SparsityError
from diffsparse.traffic.data import Speeds, read_speeds, resampled


def written(folder: Path, text: str) -> Path:
    path = folder / "speed.csv"
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
