"""One event file per run, whatever happens to the run."""

import sys
from pathlib import Path
from typing import Any

import pytest

from diffsparse import SparsityError
from diffsparse.errors import CheckpointError
from diffsparse.training import Sparsifying, train
from diffsparse.training.board import Board
from diffsparse.training.folder import Log
from tests.training.examples import STEPS, Signals, StoppedError, recipe


def record(epoch: int, phase: str = "train", **more: object) -> dict[str, Any]:
    return {"phase": phase, "epoch": epoch, "seconds": 1.5, **more}


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_every_number_and_a_curve_per_layer(tmp_path: Path) -> None:
    log = Log(path=tmp_path / "log.jsonl", board=Board(tmp_path / "board"))
    log.check()
    assert not (tmp_path / "board").exists()
    log.add(record(1, test_accuracy=0.5, macs=None, widths={"conv": 8, "head": 2}, shrunk=[0.5]))
    log.add(record(2, test_accuracy=0.75, widths={"conv": 3, "head": 2}))
    log.add(record(1, "retrain", widths=None))
    found = scalars(tmp_path / "board")
    assert found["train/test_accuracy"] == [(1, 0.5), (2, 0.75)]
    assert found["train_widths/conv"] == [(1, 8.0), (2, 3.0)]
    assert found["train_widths/head"] == [(1, 2.0), (2, 2.0)]
    assert found["retrain/seconds"] == [(1, 1.5)]
    assert set(found) & {"train/macs", "train/phase", "train/shrunk"} == set()
    assert len(list((tmp_path / "board").iterdir())) == 1


def test_what_a_run_forgets_leaves_the_file(tmp_path: Path) -> None:
    log = Log(path=tmp_path / "log.jsonl", board=Board(tmp_path / "board"))
    for epoch in (1, 2, 3):
        log.add(record(epoch))
    log.forget_after("train", 1)
    log.add(record(2, loss=0.5))
    assert scalars(tmp_path / "board")["train/epoch"] == [(1, 1.0), (2, 2.0)]
    assert len(list((tmp_path / "board").iterdir())) == 1


def test_missing_tensorboard_is_said_before_any_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    Log(path=tmp_path / "log.jsonl").check()
    with pytest.raises(SparsityError, match="pip install tensorboard"):
        Log(path=tmp_path / "log.jsonl", board=Board(tmp_path / "board")).check()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "board").write_text("")
    for act in (lambda board: board.add(record(1)), lambda board: board.write([])):
        with pytest.raises(CheckpointError, match=r"cannot write '.*tfevents"):
            act(Board(tmp_path / "board"))


@pytest.mark.usefixtures("data")
def test_a_resumed_run_has_one_file_with_every_epoch_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    its = recipe(sparsifying=Sparsifying(macs=0.5))
    with pytest.raises(StoppedError):
        train(its, tmp_path, tensorboard=True, watcher=Signals(STEPS + 2))
    train(its, tmp_path, resume=True, tensorboard=True)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    found = scalars(tmp_path / "tensorboard")
    assert [step for step, _ in found["train/test_loss"]] == [1, 2, 3]
    widths = found["train_widths/conv2"]
    assert [step for step, _ in widths] == [1, 2, 3]
    # the network became small in the second epoch, and stays as it is
    assert widths[1][1] == widths[2][1] < 6
    last = Log(path=tmp_path / "log.jsonl").records()
    assert [epoch.get("shrunk") for epoch in last] == [None, [1.5], None]
