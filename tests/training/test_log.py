import errno
import json
import sys
from pathlib import Path

import pytest

from diffsparse import SparsityError
from diffsparse.errors import CheckpointError
from diffsparse.training.log import Log


def record(epoch: int, phase: str = "train", **more: object) -> dict[str, object]:
    return {"phase": phase, "epoch": epoch, "seconds": 1.5, **more}


def test_a_line_of_json_for_each_record(tmp_path: Path) -> None:
    log = Log(path=tmp_path / "log.jsonl")
    assert log.records() == []
    log.add(record(1, zeros=0.25, macs=None))
    log.add(record(2))
    lines = log.path.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [record(1, zeros=0.25, macs=None), record(2)]
    assert log.records() == [record(1, zeros=0.25, macs=None), record(2)]


def test_a_half_written_last_line_is_passed_over(tmp_path: Path) -> None:
    log = Log(path=tmp_path / "log.jsonl")
    log.add(record(1))
    with open(log.path, "a") as file:
        file.write('{"phase": "tr')
    assert log.records() == [record(1)]


def test_forgets_what_comes_after_an_epoch_of_one_phase(tmp_path: Path) -> None:
    log = Log(path=tmp_path / "log.jsonl")
    for epoch in (1, 2):
        log.add(record(epoch, "teacher"))
    for epoch in (1, 2, 3):
        log.add(record(epoch))
    log.forget_after("train", 1)
    assert log.records() == [record(1, "teacher"), record(2, "teacher"), record(1)]
    log.forget_after("teacher", 0)
    assert log.records() == [record(1)]


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("diffsparse.training.log.os.fsync", full)
    with pytest.raises(CheckpointError, match=r"cannot write '.*log.jsonl': No space left on device"):
        Log(path=tmp_path / "log.jsonl").add(record(1))


def test_tensorboard_gets_every_number(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = Log(path=tmp_path / "log.jsonl", tensorboard=tmp_path / "board")
    log.check()
    assert not (tmp_path / "board").exists()
    log.add(record(1, test_accuracy=0.5, macs=None))
    log.add(record(2, test_accuracy=0.75))
    assert len(log.records()) == 2
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/test_accuracy")] == [(1, 0.5), (2, 0.75)]
    assert "train/macs" not in events.Tags()["scalars"]


def test_a_missing_tensorboard_is_said_before_any_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    Log(path=tmp_path / "log.jsonl").check()
    with pytest.raises(SparsityError, match=r"pip install 'diffsparse\[tensorboard\]'"):
        Log(path=tmp_path / "log.jsonl", tensorboard=tmp_path / "board").check()
