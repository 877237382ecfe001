import errno
import json
import os
from pathlib import Path

import pytest
import torch

from diffsparse import SparsityError
from diffsparse.errors import CheckpointError, SparsityWarning
from diffsparse.files import write_json
from diffsparse.training import Optimisation, Recipe, read_recipe
from diffsparse.training.folder import Log, RunFolder
from diffsparse.training.snapshot import Progress, Trained
from tests.training.examples import Net


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "deep" / "run")
    made.begin(Recipe(epochs=3), resume=False, needed=0)
    return made


def trained() -> Trained:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trained(model=model, optimizer=optimizer, scaler=torch.amp.GradScaler("cpu", enabled=False), average=None)


def written(folder: RunFolder, epoch: int, step: int = 0, phase: str = "train", number: int = 1) -> Path:
    return folder.write_snapshot(trained(), Progress(epoch=epoch, step=step), phase, number)


def test_begins_with_the_configuration(folder: RunFolder) -> None:
    assert read_recipe(folder.config) == Recipe(epochs=3)
    assert (folder.path / "checkpoints").is_dir()


def test_a_folder_that_holds_a_run_is_only_resumed(folder: RunFolder) -> None:
    with pytest.raises(SparsityError, match=r"already holds a run; give another --output, or --resume"):
        folder.begin(Recipe(epochs=3), resume=False, needed=0)
    folder.begin(Recipe(epochs=3), resume=True, needed=0)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe(epochs=4), "was begun with epochs = 3, not 4; a run is resumed as it was begun"),
        (Recipe(epochs=3, optimisation=Optimisation(clip=1.0)), "begun with optimisation.clip = None, not 1.0"),
        (Recipe(epochs=3, optimisation=Optimisation(milestones=())), r"optimisation.milestones = \[0.5, 0.75\], not"),
    ],
)
def test_another_configuration_is_refused_by_its_key(folder: RunFolder, recipe: Recipe, message: str) -> None:
    with pytest.raises(SparsityError, match=message):
        folder.begin(recipe, resume=True, needed=0)
    assert read_recipe(folder.config) == Recipe(epochs=3)


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(SparsityError, match="is not empty and holds no run; give another --output"):
        RunFolder(tmp_path).begin(Recipe(), resume=resume, needed=0)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_a_killed_process_left_is_no_hindrance(tmp_path: Path) -> None:
    draft = tmp_path / ".diffsparse-0123456789abcdef.tmp"
    draft.write_bytes(b"half of a configuration")
    folder = RunFolder(tmp_path)
    folder.begin(Recipe(), resume=False, needed=0)
    inner = tmp_path / "checkpoints" / ".diffsparse-0123456789abcdef.tmp"
    inner.write_bytes(b"half of a checkpoint")
    folder.begin(Recipe(), resume=True, needed=0)
    assert not draft.exists()
    assert not inner.exists()


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(SparsityError, match=rf"cannot make the folder '{path}': "):
            RunFolder(path).begin(Recipe(), resume=False, needed=0)


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(SparsityError, match=r"cannot make the folder '.*': Permission denied"):
            RunFolder(tmp_path / "run").begin(Recipe(), resume=False, needed=0)
        with pytest.raises(SparsityError, match=r"cannot write '.*config.toml': Permission denied"):
            RunFolder(tmp_path).begin(Recipe(), resume=False, needed=0)
    finally:
        tmp_path.chmod(0o700)


def test_a_read_only_file_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(SparsityError, match=r"cannot make the folder '.*run': Read-only file system"):
        RunFolder(tmp_path / "run").begin(Recipe(), resume=False, needed=0)


def test_a_disk_without_room_is_seen_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(SparsityError, match=r"has [\d,]+ MB left, checkpoints and results need [\d,]+ MB"):
        RunFolder(tmp_path).begin(Recipe(), resume=False, needed=2**60)
    assert list(tmp_path.iterdir()) == []


def test_two_checkpoints_stay_the_newest_first(folder: RunFolder) -> None:
    paths = [written(folder, 9), written(folder, 9, 12), written(folder, 10)]
    assert folder.snapshots() == [paths[2], paths[1]]
    later = written(folder, 1, phase="retrain", number=2)
    assert folder.snapshots() == [later, paths[2]]


def test_the_newest_whole_checkpoint_is_taken(folder: RunFolder) -> None:
    assert folder.newest_snapshot() is None
    first, second = written(folder, 1), written(folder, 2, 3)
    newest = folder.newest_snapshot()
    assert newest is not None
    assert (newest.path, newest.phase, newest.progress.epoch, newest.progress.step) == (second, "train", 2, 3)
    second.write_bytes(second.read_bytes()[:1000])
    with pytest.warns(SparsityWarning, match=f"skipping a checkpoint: .*{second.name}"):
        newest = folder.newest_snapshot()
    assert newest is not None
    assert newest.path == first


def test_a_failed_write_leaves_the_checkpoint_before_it(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    first = written(folder, 1)
    content = first.read_bytes()

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("diffsparse.files.os.fsync", full)
        with pytest.raises(CheckpointError, match=r"cannot write '.*1-train-00002.*': No space left on device"):
            written(folder, 2)
        with pytest.raises(CheckpointError, match=r"cannot write '.*result.json': No space left"):
            write_json(folder.result, {})
    assert [path.name for path in (folder.path / "checkpoints").iterdir()] == [first.name]
    assert first.read_bytes() == content
    assert not folder.result.exists()


def test_the_last_checkpoint_in_words(folder: RunFolder) -> None:
    assert folder.last_good() == "there is no checkpoint yet"
    path = written(folder, 1)
    assert folder.last_good() == f"the last checkpoint is '{path}'"


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

    monkeypatch.setattr("diffsparse.training.folder.os.fsync", full)
    with pytest.raises(CheckpointError, match=r"cannot write '.*log.jsonl': No space left on device"):
        Log(path=tmp_path / "log.jsonl").add(record(1))
