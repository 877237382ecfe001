"""Writing in one step: a failure at any point leaves the old file and nothing else."""

import errno
import json
import os
import stat

import pytest

from diffsparse import SparsityError
from diffsparse.errors import CheckpointError
from diffsparse.files import replacing, write_json


def write(path, data=b"new"):
    with replacing(path) as file:
        file.write(data)


def test_writes_and_replaces(tmp_path):
    path = tmp_path / "file"
    write(path, b"old")
    write(str(path), b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_permissions_follow_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        write(tmp_path / "file")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_the_old_file_is_there_until_the_end(tmp_path):
    path = tmp_path / "file"
    write(path, b"old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"


def test_bytes_are_on_the_disk_before_the_name_changes(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append("fsync"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("replace"), replace(*paths)))
    write(tmp_path / "file")
    assert calls == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_disk_leaves_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    write(path, b"old")

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(CheckpointError, match=f"cannot write '{path}': No space left on device"):
        write(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupted_write_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "file"
    write(path, b"old")
    with pytest.raises(error), replacing(path):
        raise error
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_cannot_be_synced_is_no_failure(tmp_path, monkeypatch):
    fsync = os.fsync

    def only_files(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "no")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", only_files)
    write(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "file").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("where", "problem"),
    [("", "it is a folder"), ("no/file", "there is no folder"), ("pipe", "it is not an ordinary file")],
)
def test_places_that_cannot_be_written(tmp_path, where, problem):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SparsityError, match=problem):
        write(tmp_path / where)
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointError, match="Permission denied"):
        write(tmp_path / "file")


def test_a_name_that_is_too_long(tmp_path):
    with pytest.raises(CheckpointError, match="File name too long"):
        write(tmp_path / ("x" * 300))
    assert os.listdir(tmp_path) == []


def test_plain_data_is_written_in_one_step(tmp_path):
    write_json(tmp_path / "numbers.json", {"pi": [3, 1, 4]})
    assert json.loads((tmp_path / "numbers.json").read_text()) == {"pi": [3, 1, 4]}
    with pytest.raises(CheckpointError, match="there is no folder"):
        write_json(tmp_path / "no" / "numbers.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["numbers.json"]
