"""Files with the layout of a pandas data frame in fixed format, written by hand."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from diffsparse import SparsityError
from diffsparse.traffic.data.hdf5 import read_hdf5

SPEEDS = np.array([[60.5, 0.0, 55.0], [61.0, 40.0, np.nan]])
IDS = np.array([b"773869", b"767541", b"767542"])


def write_frame(path: Path, values: np.ndarray = SPEEDS, names: np.ndarray = IDS, group: str = "df") -> None:
    with h5py.File(path, "a") as file:
        frame = file.create_group(group)
        frame["axis0"] = names
        frame["axis1"] = np.arange(len(values)) * 300_000_000_000
        frame["block0_items"] = names
        frame["block0_values"] = values


@pytest.mark.parametrize(("group", "names"), [("df", IDS), ("speed", np.array([773869, 767541, 767542]))])
def test_frame_is_read_whatever_its_name_and_kind_of_ids(tmp_path: Path, group: str, names: np.ndarray) -> None:
    write_frame(tmp_path / "a.h5", names=names, group=group)
    table = read_hdf5(tmp_path / "a.h5")
    assert table.columns == ("773869", "767541", "767542")
    assert np.array_equal(table.values, SPEEDS, equal_nan=True)


def test_whole_numbers_become_floats(tmp_path: Path) -> None:
    write_frame(tmp_path / "a.h5", values=np.array([[1, 2, 3]]))
    assert read_hdf5(tmp_path / "a.h5").values.dtype == np.float64


def test_files_without_exactly_one_frame_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "none.h5", "w") as file:
        file["loose"] = SPEEDS
        file["nameless/block0_values"] = SPEEDS
    write_frame(tmp_path / "two.h5")
    write_frame(tmp_path / "two.h5", group="speed")
    write_frame(tmp_path / "mixed.h5")
    with h5py.File(tmp_path / "mixed.h5", "a") as file:
        file["df/block1_values"] = SPEEDS
    for name in ("none", "two", "mixed"):
        with pytest.raises(SparsityError, match=f"{name}.h5' must hold one pandas data frame"):
            read_hdf5(tmp_path / f"{name}.h5")


def test_frames_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    write_frame(tmp_path / "names.h5", names=IDS[:2])
    with pytest.raises(SparsityError, match=r"float64 of shape \(2, 3\) and 2 names"):
        read_hdf5(tmp_path / "names.h5")
    write_frame(tmp_path / "text.h5", values=np.array([[b"a", b"b", b"c"]]))
    with pytest.raises(SparsityError, match=r"must hold numbers .* got \|S1"):
        read_hdf5(tmp_path / "text.h5")


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("a,b\n1,2\n")
    for name in ("text.h5", "nothing.h5"):
        with pytest.raises(SparsityError, match=rf"cannot read .*{name}' as HDF5"):
            read_hdf5(tmp_path / name)


def test_missing_h5py_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(SparsityError, match=r"diffsparse\[traffic\]"):
        read_hdf5(tmp_path / "a.h5")
