"""The error of everything that goes wrong between a model and its file."""

import os

from diffsparse.errors import SparsityError


class CheckpointError(SparsityError):
    """A file that cannot be written, read or fitted to a model; the message names the file and the cause."""


def require_path(value: str | os.PathLike[str]) -> str:
    """The path as a string; raises unless it is one, or an object that stands for one."""
    name = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(name, str) or not name or "\0" in name:
        raise CheckpointError(f"path must be the path of a file, got {value!r}")
    return name
