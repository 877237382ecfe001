"""The bytes of a safetensors file: written one tensor at a time, read and checked against the hash in the header.

A file holds the length of its header (8 bytes), the header (JSON) and the tensors. The metadata in the header holds the
SHA-256 of the whole file, computed with zeros in place of the 64 digits of the hash, so any changed byte is noticed.
"""

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from diffsparse.errors import CheckpointError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

HASH = "sha256"
_NO_HASH = "0" * 64
# what readers of the format accept
_LARGEST_HEADER = 100_000_000
_PICKLES = {bytes([0x80, protocol]) for protocol in range(2, 6)}
_CHUNK = 1 << 20


def write_tensors(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file with the hash of its content in `metadata`; tensors pass through memory one by one."""
    # the widest first keeps every tensor aligned to its own size
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    sizes = [tensors[name].numel() * tensors[name].element_size() for name in order]
    places = dict(zip(order, itertools.pairwise(itertools.accumulate(sizes, initial=0)), strict=True))
    header: dict[str, Any] = {"__metadata__": {**metadata, HASH: _NO_HASH}}
    for name, tensor in tensors.items():
        kind, shape = DTYPE_NAMES[tensor.dtype], list(tensor.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": places[name]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _LARGEST_HEADER:
        raise CheckpointError(f"the header would have {len(text)} bytes, more than the {_LARGEST_HEADER} of the format")
    digest = hashlib.sha256()
    parts: Iterator[bytes | memoryview] = (raw_bytes(tensors[name]) for name in order)
    for part in itertools.chain([len(text).to_bytes(8, "little"), text], parts):
        digest.update(part)
        file.write(part)
    file.seek(8 + text.index(_hash_field(_NO_HASH)))
    file.write(_hash_field(digest.hexdigest()))


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of `tensor` in row-major order, without a copy if it is contiguous and on the CPU."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data


def read_checked(name: str, format_name: str, format_version: int) -> tuple[dict[str, str], dict[str, Any]]:
    """Metadata and tensor entries of a file of the given format, after its content was checked against its hash."""
    with _opened(name) as file:
        text = _read_json(file, name)
        metadata, entries, needed = parse_json(text, name)
        if metadata.get("format") != format_name:
            raise CheckpointError(f"'{name}' is a safetensors file, but not one that {format_name} wrote")
        _check_version(metadata.get("format_version", ""), name, format_version)
        there = os.fstat(file.fileno()).st_size - 8 - len(text)
        if there < needed:
            raise CheckpointError(f"'{name}' is truncated: {there} bytes of tensors instead of {needed}")
        _check_hash(file, text, metadata.get(HASH, ""), name)
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


def _read_json(file: BinaryIO, path: str) -> bytes:
    """The header of `file` as it stands there, if there can be one."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(9)
    length = int.from_bytes(start[:8], "little")
    if start[8:] != b"{" and (start[:4] == b"PK\x03\x04" or start[:2] in _PICKLES):
        raise CheckpointError(
            f"'{path}' is a pickle, as torch.save writes it, and was not opened because pickles can run code. "
            "Load it into a model with torch.load(..., weights_only=True) and save that with diffsparse"
        )
    if start[8:] != b"{" or not 2 <= length <= min(size - 8, _LARGEST_HEADER):
        raise CheckpointError(f"'{path}' ({size} bytes) is truncated, damaged or no safetensors file")
    return start[8:] + file.read(length - 1)


def parse_json(text: bytes, path: str) -> tuple[dict[str, str], dict[str, Any], int]:
    """Metadata, tensor entries and the number of bytes that the tensors take, from a header."""
    try:
        entries: dict[str, Any] = json.loads(text)
        metadata = {str(key): str(value) for key, value in dict(entries.pop("__metadata__", {})).items()}
        return metadata, entries, max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"the header of '{path}' is damaged, or it is no safetensors file") from error


def _check_version(version: str, path: str, known: int) -> None:
    if not (version.isascii() and version.isdigit()):
        raise CheckpointError(f"the header of '{path}' is damaged: its format version is '{version}'")
    if int(version) > known:
        raise CheckpointError(f"'{path}' has format version {version}, newer than {known}; please update diffsparse")
    if int(version) < known:
        raise CheckpointError(
            f"'{path}' was written by diffsparse 0.1 in format version {version}, which this version does not read; "
            "compact the model again and save it, or load the file with diffsparse 0.1"
        )


def _check_hash(file: BinaryIO, text: bytes, claimed: str, path: str) -> None:
    """Raise unless the header `text` and the rest of `file` after it have the claimed hash."""
    digest = hashlib.sha256(len(text).to_bytes(8, "little"))
    digest.update(text.replace(_hash_field(claimed), _hash_field(_NO_HASH)))
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    if digest.hexdigest() != claimed or text.count(_hash_field(claimed)) != 1:
        raise CheckpointError(f"'{path}' is damaged: its content does not match the hash in its header")


def _hash_field(digest: str) -> bytes:
    return f'"{HASH}":"{digest}"'.encode(errors="replace")
