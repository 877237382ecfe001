from pathlib import Path

import pytest

from diffsparse.cli.main import main
from diffsparse.cli.tables import Data
from diffsparse.data import DataSet, Part, open_data
from tests.data.fakes import SMALL10, write_cifar, write_images


def rows(printed: str) -> dict[str, list[str]]:
    """The cells of a table's rows, by the first cell."""
    lines = [[cell.strip() for cell in line.strip("│").split("│")] for line in printed.splitlines() if line[:1] == "│"]
    return {cells[0]: cells[1:] for cells in lines}


def test_prints_what_the_digits_hold(capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "digits"])
    found = rows(capsys.readouterr().out)
    assert found["train"] == ["1,348", "10", "1 x 8 x 8", "122", "143"]
    assert found["test"][:3] == ["449", "10", "1 x 8 x 8"]


def test_prints_what_a_road_network_holds(capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "synthetic-roads"])
    printed = capsys.readouterr().out
    assert rows(printed)["train"] == ["960", "8", "40", "0.0%"]
    assert "102 links on the map" in printed


def test_prints_every_part_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part, counts in {"train": {"a": 5, "b": 3}, "val": {"a": 1, "b": 1}, "test": {"a": 2, "b": 1}}.items():
        write_images(tmp_path / part, counts)
    main(["data", "folder", "--data-root", str(tmp_path)])
    found = rows(capsys.readouterr().out)
    assert found == {
        "train": ["8", "2", "3 x 224 x 224", "3", "5"],
        "validation": ["2", "2", "3 x 224 x 224", "1", "1"],
        "test": ["3", "2", "3 x 224 x 224", "1", "2"],
    }


def test_takes_the_root_from_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar(SMALL10, tmp_path)
    monkeypatch.setattr("diffsparse.data.factory._CIFAR", {"cifar10": SMALL10})
    monkeypatch.setenv("DIFFSPARSE_DATA", str(tmp_path))
    main(["data", "cifar10"])
    # five files of six records, whose classes are 0 to 5
    assert rows(capsys.readouterr().out)["train"] == ["30", "10", "3 x 32 x 32", "0", "5"]


def test_a_part_without_classes_shows_no_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Values:
        def __len__(self) -> int:
            return 7

    values: Part = Values()  # type: ignore[assignment]
    data = DataSet(name="values", train=values, test=values, input_shape=(3,), num_outputs=1)
    monkeypatch.setattr("diffsparse.cli.tables.open_data", lambda *_, **__: data)
    Data(name="values").run()
    assert rows(capsys.readouterr().out)["train"] == ["7", "1", "3", "-", "-"]


def test_download_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def noted(name: str, **wishes: object) -> DataSet:
        asked[name] = wishes
        return open_data("digits")

    monkeypatch.setattr("diffsparse.cli.tables.open_data", noted)
    main(["data", "cifar100", "--data-root", str(tmp_path), "--download"])
    assert asked == {"cifar100": {"root": tmp_path, "download": True}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnist"], "data set must be one of digits"),
        (["cifar10"], "set DIFFSPARSE_DATA"),
        (["cifar10", "--data-root", "/nowhere"], "data root /nowhere does not exist"),
        (["cifar10", "--data-root", "."], "holds neither the folder cifar-10-batches-bin nor"),
        (["imagenet", "--data-root", ".", "--download"], "imagenet cannot be downloaded"),
    ],
)
def test_bad_input_exits_with_two(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DIFFSPARSE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["data", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
