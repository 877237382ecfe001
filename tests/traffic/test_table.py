import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from diffsparse import SparsityError
from diffsparse.traffic.reading import read_csv, read_hdf5


def written(folder: Path, text: str) -> Path:
    path = folder / "numbers.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_header_names_the_columns(tmp_path: Path) -> None:
    table = read_csv(written(tmp_path, "a, b\n1,2.5\n3,-4e1\n"), header=True)
    assert table.columns == ("a", "b")
    assert table.values.tolist() == [[1, 2.5], [3, -40]]
    assert table.values.dtype == np.float64


@pytest.mark.parametrize("title", ["date", "Time", "datetime", "TIMESTAMP", ""])
def test_first_column_of_dates_is_left_out(tmp_path: Path, title: str) -> None:
    table = read_csv(written(tmp_path, f"{title},a\n1/1/2015 0:00,7\n1/1/2015 0:15,8\n"), header=True)
    assert table.columns == ("a",)
    assert table.values.tolist() == [[7], [8]]


def test_without_a_header_every_row_counts(tmp_path: Path) -> None:
    table = read_csv(written(tmp_path, "1,2\n3,4\n"), header=False)
    assert table.columns == ("1", "2")
    assert table.values.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("text", ["\ufeffa,b\r\n1,2\r\n", "a,b\n1,2", "a,b\n1,2\n\n\n", 'a,b\n"1",2\n'])
def test_byte_order_mark_line_ends_and_blank_lines_at_the_end_do_not_matter(tmp_path: Path, text: str) -> None:
    table = read_csv(written(tmp_path, text), header=True)
    assert table.columns == ("a", "b")
    assert table.values.tolist() == [[1, 2]]


def test_empty_cells_are_nan(tmp_path: Path) -> None:
    values = read_csv(written(tmp_path, "a,b,c\n1,, \n"), header=True).values
    assert values[0, 0] == 1
    assert np.isnan(values[0, 1:]).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty or begins with an empty row"),
        ("\na,b\n1,2\n", "is empty or begins with an empty row"),
        ("a,b\n1,2\n3\n", "numbers.csv', row 3: 1 cells, but the first row has 2"),
        ("a,b\n1,2,3\n", "row 2: 3 cells, but the first row has 2"),
        ("a,b\n1,2\n\n3,4\n", "row 3: 0 cells"),
        ("a,b\n1,2\n3,fast\n", "row 3, column 'b': 'fast' is not a number"),
        ("a,b\n1,2\n,slow\n", "row 3, column 'b': 'slow' is not a number"),
        ("a,b\n1,nan\n", "row 2, column 'b': 'nan' is not a finite number"),
        ("a,b\n,NaN\n", "row 2, column 'b': 'NaN' is not a finite number"),
        ("a,b\n-inf,1\n", "row 2, column 'a': '-inf' is not a finite number"),
        ("day,b\n1/1/2015,1\n", "column 'day': '1/1/2015' is not a number; put dates in a first column named 'date'"),
    ],
)
def test_wrong_files_are_named_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SparsityError, match=message):
        read_csv(written(tmp_path, text), header=True)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(SparsityError, match=r"cannot read .*nothing\.csv': No such file"):
        read_csv(tmp_path / "nothing.csv", header=True)
    (tmp_path / "bytes.csv").write_bytes(b"a,b\n\xff\xfe,1\n")
    with pytest.raises(SparsityError, match=r"bytes\.csv' is not a csv file"):
        read_csv(tmp_path / "bytes.csv", header=True)


def test_refused_entries_are_named_by_row_column_and_value(tmp_path: Path) -> None:
    table = read_csv(written(tmp_path, "a,b\n1,2\n3,-4\n5,\n"), header=True)
    table.refuse(np.zeros((3, 2), dtype=bool), "never matters")
    with pytest.raises(SparsityError, match="row 3, column 'b': -4 is odd"):
        table.refuse(table.values < 0, "is odd")
    with pytest.raises(SparsityError, match="row 4, column 'b': an empty cell is odd"):
        table.refuse(np.isnan(table.values), "is odd")


SPEEDS = np.array([[60.5, 0.0, 55.0], [61.0, 40.0, np.nan]])
IDS = np.array([b"773869", b"767541", b"767542"])


def write_frame(path: Path, values: np.ndarray = SPEEDS, names: np.ndarray = IDS, group: str = "df") -> None:
    """A file with the layout of a pandas data frame in fixed format."""
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


def test_unreadable_hdf5_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("a,b\n1,2\n")
    for name in ("text.h5", "nothing.h5"):
        with pytest.raises(SparsityError, match=rf"cannot read .*{name}' as HDF5"):
            read_hdf5(tmp_path / name)


def test_missing_h5py_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(SparsityError, match="pip install h5py"):
        read_hdf5(tmp_path / "a.h5")
