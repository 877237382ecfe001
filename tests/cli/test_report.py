import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from diffsparse.cli.main import main
from diffsparse.cli.tables import results_table


def result(method: str = "ds", accuracy: float | None = 0.987, **figures: float) -> dict[str, Any]:
    return {
        "config": {"epochs": 30, "sparsifying": {"method": method, "strength": 0.002}},
        "figures": {"compact": {"loss": 0.1, **({} if accuracy is None else {"accuracy": accuracy}), **figures}},
        "zeros": {"fraction": 0.423},
        "cost": {
            "plain": {"macs": 763_520, "params": 77_562},
            "compact": {"macs": 190_880, "params": 999, "file_bytes": 41_500},
        },
        "training_seconds": {"teacher": 20.2, "train": 100.1},
    }


def write(folder: Path, content: dict[str, Any] | str) -> Path:
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def cells(printed: str) -> list[list[str]]:
    lines = [line for line in printed.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_zeros_of_several_kinds_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = {"heads": {"fraction": 0.25}, "neurons": {"fraction": 0.5}}
    several = result() | {"zeros": {"fraction": 0.49, "kinds": kinds}}
    one = result() | {"zeros": {"fraction": 0.49, "kinds": {"channels": {"fraction": 0.49}}}}
    Console(width=200).print(results_table({"gpt": several, "resnet": one}))
    assert [row[5] for row in cells(capsys.readouterr().out)] == ["heads 25.0%", "neurons 50.0%", "49.0%"]


def test_runs_in_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    folders = [write(tmp_path / "gates", result()), write(tmp_path / "whole", result("plain", 1.0))]
    main(["report", *map(str, folders), "--output", str(tmp_path / "all.json")])
    printed = capsys.readouterr().out
    assert cells(printed) == [
        ["gates", "ds", "30", "0.002", "98.70%", "42.3%", "191k (25.0%)", "999 (1.3%)", "42", "120"],
        ["whole", "plain", "30", "-", "100.00%", "42.3%", "191k (25.0%)", "999 (1.3%)", "42", "120"],
    ]
    assert json.loads((tmp_path / "all.json").read_text()) == {"gates": result(), "whole": result("plain", 1.0)}


def test_runs_of_different_kinds_share_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    folders = [write(tmp_path / "images", result()), write(tmp_path / "roads", result(accuracy=None, mape=12.345))]
    main(["report", *map(str, folders)])
    printed = capsys.readouterr().out
    assert [row[4:6] for row in cells(printed)] == [["98.70%", "-"], ["-", "12.35"]]
    assert "accuracy" in printed
    assert "mape" in printed


def test_a_table_of_nothing_pruned_has_no_lambda() -> None:
    for method, shown in (("torch-pruning", "-"), ("scratch", "-"), ("slimming", "0.002")):
        column = results_table({"run": result(method)}).columns[3]
        assert list(column.cells) == [shown]


@pytest.mark.parametrize(("again", "shown"), [(None, "30 + 30"), (10, "30 + 10")])
def test_epochs_after_a_cut_count(again: int | None, shown: str) -> None:
    run = result("slimming") | {"training_seconds": {"train": 100.0, "retrain": 80.0}}
    run["config"]["sparsifying"]["retrain_epochs"] = again
    assert list(results_table({"run": run}).columns[2].cells) == [shown]


@pytest.mark.parametrize(
    ("method", "changes", "shown"),
    [
        ("ds", {"strength": None, "asked": {"macs": 0.5}}, "budget"),
        ("ds", {"strength": 0.0123456, "asked": {}}, "0.0123"),
        ("slimming", {"strength": 1e-4, "asked": {"macs": 0.5}}, "0.0001"),
        ("torch-pruning", {"strength": None, "asked": {"params": 0.5}}, "-"),
        ("ds", {"strength": None, "asked": {}}, "-"),
    ],
)
def test_the_last_lambda_or_a_budget(method: str, changes: dict[str, Any], shown: str) -> None:
    assert list(results_table({"run": result(method) | changes}).columns[3].cells) == [shown]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give the folders of one or more finished runs"),
        (["none"], "'none' is not the folder of a run: there is no result.json in it"),
        (["begun"], "'begun' is not finished: there is no result.json in it"),
        (["broken"], "cannot read 'broken/result.json'"),
        (["list"], "'list/result.json' is not the result of a run"),
        (["old"], "'old/result.json' is not the result of a run"),
        (["a/run", "a/../a/run"], "a run is given twice; leave one out"),
        (["a/run", "b/run"], "two of the runs have folders of the same name; rename one"),
        (["a/run", "--output", "no/such/all.json"], "the folder of --output does not exist"),
        (["a/run", "--output", "a"], "--output must be a file, but a is a folder"),
    ],
)
def test_bad_input_exits_with_two(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a/run", "b/run"):
        write(tmp_path / name, result())
    write(tmp_path / "broken", "{")
    write(tmp_path / "list", "[]")
    write(tmp_path / "old", {key: value for key, value in result().items() if key != "cost"})
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.toml").touch()
    with pytest.raises(SystemExit) as stopped:
        main(["report", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_run_that_is_not_finished_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done, begun = write(tmp_path / "done", result()), tmp_path / "begun"
    begun.mkdir()
    (begun / "config.toml").touch()
    main(["report", str(begun), str(done)])
    printed = capsys.readouterr().out
    assert f"left out: '{begun}' is not finished" in printed
    assert [row[0] for row in cells(printed)] == ["done"]
    with pytest.raises(SystemExit):
        main(["report", str(begun), str(tmp_path / "none")])
    assert "none of the runs is finished" in capsys.readouterr().err


def test_learned_graphs_show_their_scores(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    graph = {"nonzeros": 1_234, "entries": 42_849, "lr1": 0.61, "lr2": 0.7}
    learned = result(accuracy=None, mape=6.0) | {"graph": graph}
    Console().print(results_table({"map": learned, "no-map": learned | {"graph": {"nonzeros": 2, "entries": 4}}}))
    printed = capsys.readouterr().out
    assert cells(printed) == [
        ["map", "ds", "30", "0.002", "6", "1,234 (2.9%)", "0.610", "0.700", "120"],
        ["no-map", "ds", "30", "0.002", "6", "2 (50.0%)", "-", "-", "120"],
    ]
    assert "MACs" not in printed
    assert "within two links" in printed
