"""A data set that is published as one archive: found, downloaded or unpacked under a root."""

import hashlib
import secrets
import shutil
import tarfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from diffsparse.errors import SparsityError
from diffsparse.files import replacing

CHUNK = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Archive:
    """Where an archive comes from, its checksum, and the files to unpack from a folder in it."""

    url: str
    md5: str
    folder: str
    files: tuple[str, ...]

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.url.rpartition("/")[2]


def locate(archive: Archive, root: Path, *, fetch: bool) -> Path:
    """The folder with the archive's files.

    `root` may contain this folder, be this folder, or contain the archive, which is then unpacked there. Otherwise the
    archive is downloaded to `root` if `fetch` is true; `root` is created if necessary.
    """
    if (root / archive.folder).is_dir():
        return root / archive.folder
    if any((root / file).is_file() for file in archive.files):
        return root
    packed = root / archive.name
    if packed.is_file():
        _check_sum(packed, archive)
    elif fetch:
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SparsityError(f"cannot make the folder {root}: {error.strerror}") from error
        download(archive.url, packed, md5=archive.md5)
    else:
        missing = f"{root} holds neither the folder {archive.folder} nor the archive {archive.name}"
        raise SparsityError(f"{missing}: ask for a download, or fetch {archive.url} and put it there")
    return _unpack(packed, archive, root)


def _check_sum(packed: Path, archive: Archive) -> None:
    try:
        with open(packed, "rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise SparsityError(f"cannot read {packed}: {error.strerror}") from error
    if found != archive.md5:
        problem = f"its MD5 checksum must be {archive.md5} but is {found}"
        raise SparsityError(f"{packed} is damaged or incomplete: {problem}; fetch {archive.url} again")


def _unpack(packed: Path, archive: Archive, root: Path) -> Path:
    """Unpack to a temporary folder first, so that the final name means that all files are there."""
    target = root / archive.folder
    draft = root / f".diffsparse-{secrets.token_hex(8)}.tmp"
    try:
        draft.mkdir()
        _copy_members(packed, archive, draft)
        try:
            draft.rename(target)
        except OSError:
            # another process may have unpacked the same files first
            if not target.is_dir():
                raise
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise SparsityError(f"cannot unpack {packed} in {root}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _copy_members(packed: Path, archive: Archive, folder: Path) -> None:
    """Copy the contents of the expected members; names, links and permissions of the archive are not used."""
    missing = {f"{archive.folder}/{file}": file for file in archive.files}
    with tarfile.open(packed, "r:gz") as members:
        for member in members:
            if member.name not in missing:
                continue
            content = members.extractfile(member) if member.isreg() else None
            if content is None:
                raise SparsityError(f"{member.name} in {packed} must be an ordinary file")
            with open(folder / missing.pop(member.name), "wb") as copy:
                shutil.copyfileobj(content, copy)
    if missing:
        raise SparsityError(f"{packed} does not hold {', '.join(missing)}")


def download(url: str, path: Path, *, md5: str, timeout: float = 30.0) -> None:
    """Fetch `url` to `path`, which appears only when it is complete and its checksum is right.

    `timeout` is in seconds and applies to connecting and to each answer, not to the whole download.
    """
    by_hand = f"try again, or fetch it by hand and put it at {path}"
    digest = hashlib.md5(usedforsecurity=False)
    # closed even if the disk fails, or the connection would stay open
    with replacing(path) as file, closing(_received(url, timeout, by_hand)) as chunks:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
        if (found := digest.hexdigest()) != md5:
            raise SparsityError(f"cannot use what {url} sent: its MD5 checksum must be {md5} but is {found}; {by_hand}")


def _received(url: str, timeout: float, by_hand: str) -> Generator[bytes, None, None]:
    """The file in chunks; every network error becomes one sentence."""
    try:
        with urlopen(url, timeout=timeout) as response, _bar(url, response.length) as advance:
            expected, received = response.length, 0
            while chunk := response.read(CHUNK):
                received += len(chunk)
                advance(len(chunk))
                yield chunk
    except (OSError, HTTPException) as error:
        if isinstance(error, HTTPError):
            # an HTTP error is also a response with an open connection
            error.close()
        # a URLError wraps the cause that says something
        reason = getattr(error, "reason", None) or error
        raise SparsityError(f"cannot download {url}: {reason}; {by_hand}") from error
    if expected is not None and received != expected:
        ended = f"the connection ended after {received:,} of {expected:,} bytes"
        raise SparsityError(f"cannot download {url}: {ended}; {by_hand}")


@contextmanager
def _bar(url: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, one line elsewhere; call the function with the number of new bytes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    console.print(f"downloading {url}", markup=False, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(url.rpartition("/")[2], total=total)
        yield lambda count: bar.advance(task, count)
