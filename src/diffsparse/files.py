"""Atomic files: after a crash there is the old file or the new one, never half of it."""

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from diffsparse.errors import CheckpointError


def require_path(value: str | os.PathLike[str]) -> str:
    """The path as a string; raises unless `value` is a path."""
    name = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(name, str) or not name or "\0" in name:
        raise CheckpointError(f"path must be the path of a file, got {value!r}")
    return name


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file in the same folder that replaces `path` when the block ends without an error.

    Its bytes are on the disk before it gets its name. After an error the old file is unchanged and the new one is
    removed. A symbolic link is followed, not replaced.
    """
    target = Path(os.path.realpath(require_path(path)))
    draft = target.with_name(f".diffsparse-{secrets.token_hex(8)}.tmp")
    try:
        _check_target(path, target)
        with open(draft, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    except OSError as error:
        raise CheckpointError(f"cannot write '{os.fspath(path)}': {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    _sync_folder(target.parent)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a small file in one step."""
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: str | os.PathLike[str], data: Any) -> None:
    """Write plain data in one step, indented for people to read."""
    write_text(path, json.dumps(data, indent=2) + "\n")


def _check_target(path: str | os.PathLike[str], target: Path) -> None:
    problem = ""
    if target.is_dir():
        problem = "it is a folder"
    elif target.exists() and not target.is_file():
        problem = "it is not an ordinary file"
    elif not target.parent.is_dir():
        problem = f"there is no folder '{target.parent}'"
    if problem:
        raise CheckpointError(f"cannot write '{os.fspath(path)}': {problem}")


def _sync_folder(folder: Path) -> None:
    # the file is already complete and in place; some systems cannot sync a folder
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
