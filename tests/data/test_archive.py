"""Archives on disk, and downloads from a small server on this machine: the good answers and the bad ones."""

import gc
import hashlib
import io
import socket
import tarfile
import threading
from pathlib import Path

import pytest

from diffsparse import SparsityError
from diffsparse.data.archive import CHUNK, Archive, download, locate
from tests.data.conftest import Server
from tests.data.fakes import packed

FILES = {"set/a.bin": b"aaa", "set/b.txt": b"bb"}


def archive_of(content: bytes, md5: str | None = None) -> Archive:
    found = hashlib.md5(content).hexdigest() if md5 is None else md5
    return Archive(url="http://localhost/set.tar.gz", md5=found, folder="set", files=("a.bin", "b.txt"))


def put(root: Path, content: bytes) -> Archive:
    (root / "set.tar.gz").write_bytes(content)
    return archive_of(content)


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_finds_the_folder_in_the_root_or_as_the_root(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"aaa")
    archive = archive_of(b"")
    assert locate(archive, tmp_path, fetch=False) == folder
    assert locate(archive, folder, fetch=True) == folder


def test_unpacks_only_what_is_expected(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    archive = put(root, packed({"set/readme": b"no", "../evil": b"no", "/tmp/evil-diffsparse": b"no", **FILES}))
    assert locate(archive, root, fetch=False) == root / "set"
    assert names(tmp_path) == ["root/set.tar.gz", "root/set/a.bin", "root/set/b.txt"]
    assert (root / "set" / "a.bin").read_bytes() == b"aaa"
    assert not Path("/tmp/evil-diffsparse").exists()


def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as members:
        link = tarfile.TarInfo("set/a.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        members.addfile(link)
    archive = put(tmp_path, buffer.getvalue())
    with pytest.raises(SparsityError, match=r"set/a\.bin in .* must be an ordinary file"):
        locate(archive, tmp_path, fetch=False)
    assert names(tmp_path) == ["set.tar.gz"]


def test_a_missing_member_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    archive = put(tmp_path, packed({"set/a.bin": b"aaa"}))
    with pytest.raises(SparsityError, match=r"does not hold set/b\.txt"):
        locate(archive, tmp_path, fetch=False)
    assert [path.name for path in tmp_path.iterdir()] == ["set.tar.gz"]


def test_a_damaged_archive_is_refused_by_its_checksum(tmp_path: Path) -> None:
    archive = archive_of(packed(FILES))
    (tmp_path / "set.tar.gz").write_bytes(b"half of it")
    with pytest.raises(
        SparsityError, match=rf"damaged .* must be {archive.md5} but is {hashlib.md5(b'half of it').hexdigest()}"
    ):
        locate(archive, tmp_path, fetch=True)


@pytest.mark.parametrize("content", [b"no archive", packed(FILES)[:60]], ids=["foreign", "truncated"])
def test_what_cannot_be_unpacked_is_one_sentence(content: bytes, tmp_path: Path) -> None:
    archive = put(tmp_path, content)
    with pytest.raises(SparsityError, match=r"cannot unpack .*set\.tar\.gz"):
        locate(archive, tmp_path, fetch=False)
    assert [path.name for path in tmp_path.iterdir()] == ["set.tar.gz"]


def test_another_process_may_unpack_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = put(tmp_path, packed(FILES))
    rename = Path.rename

    def late(self: Path, target: Path) -> None:
        target.mkdir()
        (target / "a.bin").write_bytes(b"theirs")
        rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    assert locate(archive, tmp_path, fetch=False) == tmp_path / "set"
    assert (tmp_path / "set" / "a.bin").read_bytes() == b"theirs"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "set.tar.gz"]


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = put(tmp_path, packed(FILES))

    # not by permission bits, which do not bind root
    def forbidden(self: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", forbidden)
    with pytest.raises(SparsityError, match=r"cannot unpack .*Permission denied"):
        locate(archive, tmp_path, fetch=False)
    with pytest.raises(SparsityError, match=r"cannot make the folder .*new: Permission denied"):
        locate(archive, tmp_path / "new", fetch=True)


def test_nothing_there_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(SparsityError) as raised:
        locate(archive_of(b""), tmp_path, fetch=False)
    for words in (str(tmp_path), "the folder set", "the archive set.tar.gz", "http://localhost/set.tar.gz"):
        assert words in str(raised.value)


def test_a_download_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = packed(FILES)
    archive, root = archive_of(content), tmp_path / "new" / "root"

    def fetched(url: str, path: Path, *, md5: str) -> None:
        assert (url, md5) == (archive.url, archive.md5)
        path.write_bytes(content)

    monkeypatch.setattr("diffsparse.data.archive.download", fetched)
    assert locate(archive, root, fetch=True) == root / "set"
    monkeypatch.setattr("diffsparse.data.archive.download", lambda *_, **__: pytest.fail("it is there"))
    assert locate(archive, root, fetch=True) == root / "set"


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
