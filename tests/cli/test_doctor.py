import platform

import pytest

from diffsparse.cli import doctor
from diffsparse.cli.main import main


def test_says_what_is_there_and_tests_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_installed", lambda package: None if package == "h5py" else "1.0")
    main(["doctor"])
    printed = capsys.readouterr().out
    for word in ("torch 2.", "threads", "matplotlib", "GMAC/s", "diffsparse works here"):
        assert word in printed
    assert [line.split()[1] for line in printed.splitlines() if line.startswith("ok ")] == [
        "gates",
        "budget",
        "compact",
        "files",
    ]
    assert platform.python_version() in printed
    (traffic,) = [line for line in printed.splitlines() if "traffic" in line]
    assert "missing" in traffic
    (onnx,) = [line for line in printed.splitlines() if line.startswith("│ onnx ")]
    assert "there" in onnx


def test_a_part_that_does_not_work_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError("no room\nat all")

    monkeypatch.setattr(doctor, "save", broken)
    monkeypatch.setattr(doctor.Patient, "train", lambda _: "left out here")
    monkeypatch.setattr(doctor, "layer_times", lambda: "")
    with pytest.raises(SystemExit) as stopped:
        main(["doctor"])
    assert stopped.value.code == 1
    printed = capsys.readouterr().out
    assert "FAILED files" in printed
    assert "OSError: no room" in printed
    assert "1 of the tests failed" in printed
