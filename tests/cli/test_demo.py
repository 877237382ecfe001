import json
from pathlib import Path

import pytest

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
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--strength", "-1"], "got -1"),
        (["--strength", "nan"], "got nan"),
        (["--depth", "15"], "got 15"),
        (["--learning-rate", "0"], "got 0"),
        (["--output", "no/such/folder/x.json"], "does not exist"),
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
