from pathlib import Path

import pytest

from diffsparse import SparsityError
from diffsparse.text.reading import find_parts, read_plain, read_sentences


def written(folder: Path, content: str | bytes, name: str = "train.tsv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (["train.tsv", "dev.tsv", "test.tsv"], {"train", "dev", "test"}),
        (["sst2_train.tsv", "sst2_dev.tsv"], {"train", "dev"}),
        (["mood-Train.tsv", "mood.validation.tsv"], {"train", "dev"}),
        (["VAL.tsv", "x_valid.txt"], set()),
        (["retrain.tsv", "contest.tsv", "train.csv", "train"], set()),
    ],
)
def test_parts_are_known_by_the_end_of_their_names(tmp_path: Path, names: list[str], parts: set[str]) -> None:
    for name in names:
        written(tmp_path, "a\t0", name)
    assert {*find_parts(tmp_path)} == (parts or ({"dev"} if "val.tsv" in map(str.lower, names) else set()))


def test_two_files_for_one_part_are_refused(tmp_path: Path) -> None:
    for name in ("a_train.tsv", "b_train.tsv"):
        written(tmp_path, "a\t0", name)
    with pytest.raises(SparsityError, match=r"a_train.tsv' and '.*b_train.tsv' could both be the train part"):
        find_parts(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["a b\t0\nc\td\t1\n", "sentence\tlabel\na b\t0\nc\td\t1", "\ufeffa b\t0\r\nc\td\t1\r\n\r\n", "a b\t0\n\nc\td\t 1 "],
)
def test_headings_line_ends_and_blank_lines_do_not_matter(tmp_path: Path, content: str) -> None:
    read = read_sentences(written(tmp_path, content))
    assert read is not None
    # a sentence may contain tabs: the label is behind the last one
    assert read.texts == [b"a b", b"c\td"]
    assert read.labels == [0, 1]


def test_bytes_of_any_encoding_stay_as_they_are(tmp_path: Path) -> None:
    read = read_sentences(written(tmp_path, b"caf\xe9 \xc3\xa9\t3\n"))
    assert read is not None
    assert read.texts == [b"caf\xe9 \xc3\xa9"]


def test_a_test_part_without_labels_is_told_apart(tmp_path: Path) -> None:
    assert read_sentences(written(tmp_path, "index\tsentence\n0\tit is fine\n", "test.tsv")) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "train.tsv' holds no sentences; a line is a sentence, a tab and a label"),
        ("sentence\tlabel\n", "holds no sentences"),
        ("a\t0\nno label\n", "train.tsv', line 2: there is no tab between sentence and label"),
        ("sentence\tlabel\na\t0\nb\tgood\n", "line 3: the label 'good' is not a whole number from 0 on"),
        ("a\t-1\n", "line 1: the label '-1' is not a whole number"),
        ("a\t0.5\n", "line 1: the label '0.5' is not a whole number"),
        ("a\t\n", "line 1: the label '' is not a whole number"),
        (b"a\x00b\t0\n", "contains the byte 0"),
    ],
)
def test_odd_files_are_refused(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(SparsityError, match=message):
        read_sentences(written(tmp_path, content))


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").mkdir()
    with pytest.raises(SparsityError, match=r"cannot read '.*train.tsv'"):
        read_sentences(tmp_path / "train.tsv")


def test_plain_files_are_joined_in_the_order_of_their_names(tmp_path: Path) -> None:
    written(tmp_path, "world", "b.txt")
    written(tmp_path, "hello ", "a.txt")
    written(tmp_path, "not this", "c.md")
    assert read_plain(tmp_path) == b"hello world"
    written(tmp_path, b"\x00", "z.txt")
    with pytest.raises(SparsityError, match=r"z.txt' is not text"):
        read_plain(tmp_path)
