"""A file opened, checked and described, without a model."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from safetensors import SafetensorError, safe_open
from torch import Tensor

from diffsparse.checkpoint.container import HASH, check_hash, parse_json, read_json
from diffsparse.checkpoint.header import FORMAT_NAME, FORMAT_VERSION, Header
from diffsparse.errors import CheckpointError
from diffsparse.files import require_path


def read_header(path: str | os.PathLike[str]) -> Header:
    """What the file at `path` says about itself, after its whole content was checked against its hash.

    Args:
        path: a file that `save` wrote.

    Raises:
        CheckpointError: there is no such file, it is damaged, foreign, or has a format of another version.

    Example:
        >>> import tempfile
        >>> from torch import nn
        >>> from diffsparse.checkpoint import save
        >>> path = tempfile.mkdtemp() + "/net.safetensors"
        >>> save(nn.Linear(3, 2), path)
        >>> header = read_header(path)
        >>> header.kind, header.model_class
        ('plain', 'torch.nn.modules.linear.Linear')
        >>> header.tensors["weight"]
        TensorRecord(dtype=torch.float32, shape=(2, 3))
    """
    name = require_path(path)
    metadata, entries = read_checked(name, FORMAT_NAME, FORMAT_VERSION)
    try:
        header = Header.from_metadata(metadata, entries)
        header.all_tensors()
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise CheckpointError(f"the header of '{name}' cannot be understood: {error}") from error
    return header


def read_checked(name: str, format_name: str, format_version: int) -> tuple[dict[str, str], dict[str, Any]]:
    """Metadata and tensor entries of a file of the given format, after its content was checked against its hash."""
    with _opened(name) as file:
        text = read_json(file, name)
        metadata, entries, needed = parse_json(text, name)
        if metadata.get("format") != format_name:
            raise CheckpointError(f"'{name}' is a safetensors file, but not one that {format_name} wrote")
        _check_version(metadata.get("format_version", ""), name, format_version)
        there = os.fstat(file.fileno()).st_size - 8 - len(text)
        if there < needed:
            raise CheckpointError(f"'{name}' is truncated: {there} bytes of tensors instead of {needed}")
        check_hash(file, text, metadata.get(HASH, ""), name)
    return metadata, entries


def mapped_tensors(path: str | os.PathLike[str], names: Iterable[str], sha256: str) -> dict[str, Tensor]:
    """Tensors of a checked file, mapped from the disk rather than read into memory."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            if (file.metadata() or {}).get(HASH) != sha256:
                raise CheckpointError(f"'{os.fspath(path)}' was replaced while it was read; load it again")
            return {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"cannot read '{os.fspath(path)}': {error}") from error


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    try:
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no file '{path}'") from error
    except IsADirectoryError as error:
        raise CheckpointError(f"'{path}' is a folder, not a file") from error
    except OSError as error:
        raise CheckpointError(f"cannot read '{path}': {error.strerror or error}") from error


def _check_version(version: str, path: str, known: int) -> None:
    if not (version.isascii() and version.isdigit()):
        raise CheckpointError(f"the header of '{path}' is damaged: its format version is '{version}'")
    if int(version) > known:
        raise CheckpointError(
            f"'{path}' has format version {version}, newer than {known}, the newest this diffsparse reads; "
            "update diffsparse"
        )
    if int(version) < known:
        raise CheckpointError(
            f"'{path}' was written by diffsparse 0.1 in format version {version}, which this version does not read; "
            "compact the model again and save it, or load the file with diffsparse 0.1"
        )
