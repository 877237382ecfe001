import json
from pathlib import Path

import pytest
import torch

import diffsparse
from diffsparse.cli.main import main


def test_demo_trains_both_nets_and_writes_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "demo.json"
    main(["demo", "--epochs", "1", "--depth", "8", "--width", "4", "--output", str(output)])
    printed = capsys.readouterr().out
    assert "plain" in printed
    assert "gated" in printed
    record = json.loads(output.read_text())
    assert record["config"]["epochs"] == 1
    assert set(record["results"]) == {"plain", "gated"}
    assert record["results"]["gated"]["sparsity"]["channels"]["total"] == 4 + 4 + 4 + 8 + 8 + 16 + 16


def test_sparsity_emerges_at_little_cost_in_accuracy(tmp_path: Path) -> None:
    output = tmp_path / "demo.json"
    main(["demo", "--output", str(output)])
    results = json.loads(output.read_text())["results"]
    assert results["gated"]["sparsity"]["channels"]["fraction"] >= 0.4
    assert results["gated"]["accuracy"] >= results["plain"]["accuracy"] - 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "epochs must be a whole number of at least 1, got 0"),
        (["--strength", "-1"], "got -1"),
        (["--strength", "nan"], "got nan"),
        (["--depth", "15"], "got 15"),
        (["--learning-rate", "0"], "got 0"),
        (["--learning-rate", "inf"], "learning_rate must be a finite number above 0, got inf"),
        (["--batch-size", "1025"], "batch_size must be a whole number of at least 1 and of at most 1024, got 1025"),
        (["--seed", "-1"], "seed must be a whole number of at least 0"),
        (["--seed", str(2**64)], "seed must be a whole number of at least 0"),
        (["--output", "no/such/folder/x.json"], "does not exist"),
        (["--output", "tests"], "--output must be a file, got the folder"),
    ],
)
def test_bad_input_exits_with_two_and_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["demo", "--epochs", "1", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_ctrl_c_stops_quietly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(seed: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("diffsparse.cli.demo.load_digits", interrupted)
    with pytest.raises(SystemExit) as stopped:
        main(["demo"])
    assert stopped.value.code == 130
    assert "stopped" in capsys.readouterr().err


SMALL = ["demo", "--epochs", "6", "--depth", "8", "--width", "1", "--batch-size", "1024"]


def test_runs_on_one_thread_and_gives_the_others_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        main([*SMALL, "--output", str(tmp_path / "demo.json")])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert json.loads((tmp_path / "demo.json").read_text())["threads"] == 1


def test_prints_lines_where_no_bar_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    main(SMALL)
    lines = [line for line in capsys.readouterr().out.splitlines() if " epoch " in line]
    assert [line.split(": loss")[0] for line in lines] == [
        f"{kind} epoch {epoch}/6" for kind in ("plain", "gated") for epoch in (5, 6)
    ]
    assert "zero channels" in lines[-1]


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([*SMALL, *arguments])
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_a_file_that_may_not_be_written_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # not by permission bits, which do not bind root
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setattr("diffsparse.cli.demo.load_digits", lambda seed: pytest.fail("it trained"))
    assert "--output cannot be written" in refused(["--output", str(tmp_path / "demo.json")], capsys)


def test_a_file_that_fails_to_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, text: str) -> None:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_text", full)
    assert "cannot be written: [Errno 28] No space left" in refused(["--output", str(tmp_path / "demo.json")], capsys)


def test_prints_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out == f"diffsparse {diffsparse.__version__}\n"
