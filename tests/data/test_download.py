"""Against a small server on this machine, the good answers and the bad ones."""

import gc
import hashlib
import io
import socket
import threading
from pathlib import Path

import pytest

from diffsparse import SparsityError
from diffsparse.data.download import CHUNK, download
from tests.data.conftest import Server

CONTENT = bytes(range(256)) * (CHUNK // 128)
MD5 = hashlib.md5(CONTENT).hexdigest()


def refused(url: str, path: Path, md5: str = MD5, timeout: float = 5.0) -> str:
    """The sentence; the folder must be as it was."""
    before = sorted(path.parent.iterdir())
    with pytest.raises(SparsityError) as raised:
        download(url, path, md5=md5, timeout=timeout)
    assert sorted(path.parent.iterdir()) == before
    assert f"put it at {path}" in str(raised.value)
    assert url in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("announced", [len(CONTENT), None])
def test_the_file_gets_its_name(server: Server, announced: int | None, tmp_path: Path) -> None:
    server.files["/set"], server.announced["/set"] = CONTENT, announced
    download(f"{server.url}/set", tmp_path / "file", md5=MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_truncated_answer_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.files["/set"], server.announced["/set"] = CONTENT[:1000], len(CONTENT)
    assert f"ended after 1,000 of {len(CONTENT):,} bytes" in refused(f"{server.url}/set", tmp_path / "file")


def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.files["/set"] = CONTENT
    message = refused(f"{server.url}/set", tmp_path / "file", md5="0" * 32)
    assert f"must be {'0' * 32} but is {MD5}" in message


def test_an_old_file_stays_if_the_new_one_fails(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    server.files["/set"] = b"something else"
    refused(f"{server.url}/set", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"old"


def test_an_address_without_a_file_is_named(server: Server, tmp_path: Path) -> None:
    assert "Not Found" in refused(f"{server.url}/set", tmp_path / "file")
    # a connection left open would warn now
    gc.collect()


def test_no_network_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/file"
        assert "refused" in refused(address, tmp_path / "file")


def test_a_silent_server_is_left_after_the_timeout(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        assert "timed out" in refused(address, tmp_path / "file", timeout=0.1)


def test_a_server_that_speaks_no_http_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"what do you want?\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        message = refused(f"http://127.0.0.1:{listening.getsockname()[1]}/file", tmp_path / "file")
        thread.join()
    assert "what do you want" in message


def test_a_disk_that_fails_is_not_taken_for_the_network(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(28, "No space left on device")

    server.files["/set"] = CONTENT
    monkeypatch.setattr("builtins.open", lambda *_: Full())
    with pytest.raises(SparsityError, match=r"cannot write .*: No space left on device"):
        download(f"{server.url}/set", tmp_path / "file", md5=MD5)
