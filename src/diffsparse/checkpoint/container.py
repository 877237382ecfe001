"""The bytes of a safetensors file: written one tensor at a time, and checked against the hash in its header.

A file is the length of its header (8 bytes), the header (JSON), the tensors. The metadata in the header holds the
SHA-256 of the whole file with the 64 digits of the hash itself written as zeros, so that any changed byte is noticed.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from math import prod
from typing import Any, BinaryIO

import torch
from torch import Tensor

from diffsparse.checkpoint.errors import CheckpointError

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
_CHUNK = 1 << 20


def write_tensors(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file with the hash of its content in `metadata`; tensors pass through memory one by one."""
    # the widest first keeps every tensor aligned to its own size
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": {**metadata, HASH: _NO_HASH}}
    offset = 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _LARGEST_HEADER:
        raise CheckpointError(f"the header would have {len(text)} bytes, more than the {_LARGEST_HEADER} of the format")
    digest = hashlib.sha256()
    _put(file, digest, len(text).to_bytes(8, "little") + text)
    for name in names:
        _put(file, digest, raw_bytes(tensors[name]))
    file.seek(8 + text.index(_hash_field(_NO_HASH)))
    file.write(_hash_field(digest.hexdigest()))


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of `tensor` in row-major order, without a copy if it is contiguous and on the CPU."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return memoryview(plain.reshape(-1).view(torch.uint8).numpy())


def read_checked(file: BinaryIO, path: str | os.PathLike[str]) -> tuple[bytes, int]:
    """The header's bytes and the number of bytes that should follow it, for a file that can be one of this format."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    if start[:4] == b"PK\x03\x04" or (start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05" and len(start) > 1):
        raise CheckpointError(
            f"'{os.fspath(path)}' is a pickle, as torch.save writes it, and pickles can run code: it was not opened. "
            "Load it into a model with torch.load(..., weights_only=True) and save that with diffsparse"
        )
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(size - 8, _LARGEST_HEADER):
        raise CheckpointError(f"'{os.fspath(path)}' is truncated, damaged or no safetensors file ({size} bytes)")
    return file.read(length), size - 8 - length


def parse_header(text: bytes, left: int, path: str | os.PathLike[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Metadata and tensor entries of a header that `left` bytes follow."""
    try:
        entries: dict[str, Any] = json.loads(text)
        metadata = dict(entries.pop("__metadata__", {}))
        needed = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
        known = all(entry["dtype"] in DTYPES and prod(entry["shape"]) >= 0 for entry in entries.values())
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"the header of '{os.fspath(path)}' is damaged, or it is no safetensors file") from error
    if needed > left:
        raise CheckpointError(f"'{os.fspath(path)}' is truncated: {left} bytes of tensors instead of {needed}")
    return metadata, entries if known else {}


def check_hash(file: BinaryIO, text: bytes, claimed: str, path: str | os.PathLike[str]) -> None:
    """Raise unless `text`, its length before it and the rest of `file` after it have the claimed hash."""
    digest = hashlib.sha256(len(text).to_bytes(8, "little"))
    digest.update(text.replace(_hash_field(claimed), _hash_field(_NO_HASH)))
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    if digest.hexdigest() != claimed or text.count(_hash_field(claimed)) != 1:
        raise CheckpointError(f"'{os.fspath(path)}' is damaged: its content does not match the hash in its header")


def _hash_field(digest: str) -> bytes:
    return f'"{HASH}":"{digest}"'.encode()


def _put(file: BinaryIO, digest: "hashlib._Hash", data: bytes | memoryview) -> None:
    digest.update(data)
    file.write(data)
