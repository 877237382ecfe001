"""A data set that is published as one archive: found, fetched or unpacked under a root."""

import hashlib
import secrets
import shutil
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from diffsparse.data.download import download
from diffsparse.errors import SparsityError


@dataclass(frozen=True, kw_only=True)
class Archive:
    """Where an archive comes from and what it holds."""

    url: str
    """Its address; the last part is the name of the file."""
    md5: str
    """Its checksum."""
    folder: str
    """The folder in it."""
    files: tuple[str, ...]
    """The files of that folder that are used; no other is unpacked."""

    @property
    def name(self) -> str:
        """The name of the archive's file."""
        return self.url.rpartition("/")[2]


def locate(archive: Archive, root: Path, *, fetch: bool) -> Path:
    """The folder with the archive's files.

    `root` holds this folder, is it, or holds the archive, which is then unpacked beside it. If none is so and `fetch`
    is true, the archive is downloaded to `root`, which is made if need be.
    """
    if (root / archive.folder).is_dir():
        return root / archive.folder
    if any((root / file).is_file() for file in archive.files):
        return root
    packed = root / archive.name
    if packed.is_file():
        _check_sum(packed, archive)
    elif fetch:
        _make(root)
        download(archive.url, packed, md5=archive.md5)
    else:
        raise SparsityError(
            f"{root} holds neither the folder {archive.folder} nor the archive {archive.name}: "
            f"ask for a download, or fetch {archive.url} and put it there"
        )
    return _unpack(packed, archive, root)


def _check_sum(packed: Path, archive: Archive) -> None:
    try:
        with open(packed, "rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise SparsityError(f"cannot read {packed}: {error.strerror}") from error
    if found != archive.md5:
        raise SparsityError(
            f"{packed} is damaged or incomplete: its MD5 checksum must be {archive.md5} but is {found}; "
            f"fetch {archive.url} again"
        )


def _make(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SparsityError(f"cannot make the folder {root}: {error.strerror}") from error


def _unpack(packed: Path, archive: Archive, root: Path) -> Path:
    """Unpack to a folder of another name first, so that the right name means that all is there."""
    target = root / archive.folder
    draft = root / f".diffsparse-{secrets.token_hex(8)}.tmp"
    try:
        draft.mkdir()
        _copy_members(packed, archive, draft)
        _move(draft, target)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise SparsityError(f"cannot unpack {packed} in {root}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _move(draft: Path, target: Path) -> None:
    try:
        draft.rename(target)
    except OSError:
        # another process may have been quicker; what it unpacked is the same
        if not target.is_dir():
            raise


def _copy_members(packed: Path, archive: Archive, folder: Path) -> None:
    """Copy the contents of the expected members; no name, link or permission of the archive reaches the disk."""
    missing = {f"{archive.folder}/{file}": file for file in archive.files}
    with tarfile.open(packed, "r:gz") as members:
        for member in members:
            file = missing.get(member.name)
            if file is None:
                continue
            content = members.extractfile(member) if member.isreg() else None
            if content is None:
                raise SparsityError(f"{member.name} in {packed} must be an ordinary file")
            with open(folder / file, "wb") as copy:
                shutil.copyfileobj(content, copy)
            del missing[member.name]
    if missing:
        raise SparsityError(f"{packed} does not hold {', '.join(missing)}")
