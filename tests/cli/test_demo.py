import contextlib
import io
import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import diffsparse
from diffsparse.cli.demo import _draw
from diffsparse.cli.main import main
from diffsparse.measuring.meter import measure_in_turns
from diffsparse.models import create
from diffsparse.training import StoppedError

NETS = ("plain", "macs-0.5", "macs-0.25")


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A demo that is over."""

    folder: Path
    printed: str
    rows: dict[str, Any]


def quick_measure(models: Any, images: Any) -> Any:
    assert torch.get_num_threads() == 1
    return measure_in_turns(models, images, seconds=0.01, min_runs=2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The real thing, on a smaller net."""
    folder, printed = tmp_path_factory.mktemp("demo") / "new", io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        patch.setattr("diffsparse.cli.demo.measure_in_turns", quick_measure)
        main(["demo", "--model", "preresnet8-0.5", "--epochs", "6", "--output", str(folder)])
    rows = json.loads((folder / "demo.json").read_text())
    return Finished(folder=folder, printed=printed.getvalue(), rows=rows)


def test_budgets_hold_at_little_cost_in_accuracy(finished: Finished) -> None:
    assert list(finished.rows) == list(NETS)
    plain = finished.rows["plain"]
    for name, share in (("macs-0.5", 0.5), ("macs-0.25", 0.25)):
        row = finished.rows[name]
        assert row["cost"]["macs"] <= share * plain["cost"]["macs"]
        assert row["file_bytes"] < plain["file_bytes"]
        assert row["accuracy"] >= plain["accuracy"] - 0.06
        assert sum(row["widths"].values()) < sum(plain["widths"].values())
    assert plain["accuracy"] > 0.9
    assert all(row["cost"]["threads"] == 1 for row in finished.rows.values())


def test_prints_the_epochs_of_all_nets_the_table_and_the_widths(finished: Finished) -> None:
    lines = finished.printed.splitlines()
    epochs = [line.split(":")[0] for line in lines if " epoch " in line and not line.startswith("after ")]
    assert epochs == [f"{net} epoch {epoch}/6" for net in NETS for epoch in range(1, 7)]
    rows = {line.split("│")[1].strip(): line for line in lines if line.startswith("│")}
    assert list(rows) == list(NETS)
    assert f"{finished.rows['macs-0.5']['accuracy']:.2%}" in rows["macs-0.5"]
    for heading in ("accuracy", "MACs", "params", "file kB", "latency ms", "train s"):
        assert heading in finished.printed
    widths = [finished.rows[name]["widths"] for name in NETS]
    (stem,) = (line for line in lines if line.strip().startswith("stem "))
    assert [int(word) for word in stem.split() if word.isdecimal()] == [own["stem"] for own in widths]
    assert "the runs and demo.json are in" in finished.printed
    for name, share in (("macs-0.5", 0.5), ("macs-0.25", 0.25)):
        times = [finished.rows[net]["cost"]["latency"]["median"] for net in (name, "plain")]
        (said,) = (line for line in lines if line.startswith(f"{name}: "))
        assert said.endswith(f"{times[0] / times[1]:.0%} of the time")
        assert int(said.split(": ")[1].split("%")[0]) <= 100 * share
    assert "Why MACs are not time here" in finished.printed


def test_all_runs_are_kept_with_a_picture(finished: Finished) -> None:
    net = diffsparse.load(
        finished.folder / "macs-0.25" / "compact.safetensors", create("preresnet8-0.5", in_channels=1)
    )
    assert sum(parameter.numel() for parameter in net.parameters()) == finished.rows["macs-0.25"]["cost"]["params"]
    main(["report", *(str(finished.folder / name) for name in NETS)])
    assert {path.name for path in finished.folder.iterdir()} >= {"widths.svg", "widths.png"}


def test_without_matplotlib_the_picture_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    _draw({"plain": {"conv": 3}}, tmp_path, Console())
    assert capsys.readouterr().out.startswith("no picture of the widths: pictures need matplotlib")
    assert list(tmp_path.iterdir()) == []


def test_threads_are_given_back_and_nothing_is_kept_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("diffsparse.cli.demo.measure_in_turns", quick_measure)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        main(["demo", "--epochs", "1", "--model", "preresnet8-0.25", "--macs", "0.5"])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert "macs-0.5 epoch 1/1" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "epochs must be a whole number of at least 1, got 0"),
        (["--macs", "-1"], "macs must be a finite number above 0, got -1.0"),
        (["--macs", "nan"], "got nan"),
        (["--macs"], "--macs needs one or more different budgets, got []"),
        (["--macs", "0.5", "0.5"], "--macs needs one or more different budgets, got [0.5, 0.5]"),
        (["--model", "preresnet15"], "got 15"),
        (["--model", "vgg"], "unknown network 'vgg'"),
        (["--seed", "-1"], "seed must be a whole number of at least 0"),
        (["--seed", str(2**31)], "seed must be a whole number of at least 0"),
        (["--output", "tests"], "--output must be a new or empty folder, got tests"),
        (["--output", "README.md"], "--output must be a new or empty folder, got README.md"),
        (["--output", "README.md/inside"], "cannot make the folder 'README.md/inside/plain': Not a directory"),
    ],
)
def test_bad_input_exits_with_two_and_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["demo", "--epochs", "1", *arguments])
    assert stopped.value.code == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("words", [["demo"], ["demo", "traffic"]], ids=["digits", "traffic"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), StoppedError(signal.SIGINT)], ids=["at once", "after a step"])
def test_ctrl_c_stops_quietly(
    error: BaseException, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("diffsparse.cli.demo.train", interrupted)
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "diffsparse: stopped\n"


def test_prints_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out == f"diffsparse {diffsparse.__version__}\n"
