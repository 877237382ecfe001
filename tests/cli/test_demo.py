import contextlib
import io
import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import diffsparse
from diffsparse.cli.main import main
from diffsparse.measuring.meter import measure_in_turns
from diffsparse.models import create
from diffsparse.training import StoppedError


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
        patch.setattr("diffsparse.cli.demo.measure_in_turns", quick_measure)
        main(["demo", "--model", "preresnet8-0.5", "--epochs", "8", "--strength", "0.02", "--output", str(folder)])
    rows = json.loads((folder / "demo.json").read_text())
    return Finished(folder=folder, printed=printed.getvalue(), rows=rows)


def test_sparsity_emerges_at_little_cost_in_accuracy(finished: Finished) -> None:
    plain, gated, compact = (finished.rows[name] for name in ("plain", "gated", "compact"))
    assert gated["zeros"] >= 0.3
    assert gated["accuracy"] >= plain["accuracy"] - 0.03
    assert compact["accuracy"] == gated["accuracy"]
    assert compact["cost"]["macs"] < 0.7 * plain["cost"]["macs"] == 0.7 * gated["cost"]["macs"]
    assert compact["file_bytes"] < 0.7 * plain["file_bytes"]
    assert all(row["cost"]["threads"] == 1 for row in finished.rows.values())


def test_prints_the_epochs_of_both_nets_and_the_table(finished: Finished) -> None:
    lines = finished.printed.splitlines()
    epochs = [line.split(":")[0] for line in lines if " epoch " in line]
    assert epochs == [f"{kind} epoch {epoch}/8" for kind in ("plain", "gated") for epoch in range(1, 9)]
    rows = {line.split("│")[1].strip(): line for line in lines if line.startswith("│")}
    assert list(rows) == ["plain", "gated", "compact"]
    assert f"{finished.rows['gated']['accuracy']:.2%}" in rows["gated"]
    assert f"{finished.rows['compact']['cost']['params']:,}" in rows["compact"]
    assert "the runs and demo.json are in" in finished.printed


def test_both_runs_are_kept(finished: Finished) -> None:
    net = diffsparse.load(finished.folder / "gated" / "compact.safetensors", create("preresnet8-0.5", in_channels=1))
    assert sum(parameter.numel() for parameter in net.parameters()) == finished.rows["compact"]["cost"]["params"]
    main(["report", str(finished.folder / "plain"), str(finished.folder / "gated")])


def test_threads_are_given_back_and_nothing_is_kept_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("diffsparse.cli.demo.measure_in_turns", quick_measure)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        main(["demo", "--epochs", "1", "--model", "preresnet8-0.25"])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert "gated epoch 1/1" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "epochs must be a whole number of at least 1, got 0"),
        (["--strength", "-1"], "strength must be a finite number of at least 0, got -1.0"),
        (["--strength", "nan"], "got nan"),
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
