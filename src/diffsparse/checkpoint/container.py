"""The bytes of a safetensors file: written one tensor at a time, and checked against the hash in its header.

A file is the length of its header (8 bytes), the header (JSON), the tensors. The metadata in the header holds the
SHA-256 of the whole file with the 64 digits of the hash itself written as zeros, so that any changed byte is noticed.
"""

import hashlib
import itertools
import json
import os
from collections.abc import Mapping
from typing import Any, BinaryIO

import torch
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
        described = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape)}
        header[name] = {**described, "data_offsets": places[name]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _LARGEST_HEADER:
        raise CheckpointError(f"the header would have {len(text)} bytes, more than the {_LARGEST_HEADER} of the format")
    digest = hashlib.sha256()
    _put(file, digest, len(text).to_bytes(8, "little") + text)
    for name in order:
        _put(file, digest, raw_bytes(tensors[name]))
    file.seek(8 + text.index(_hash_field(_NO_HASH)))
    file.write(_hash_field(digest.hexdigest()))


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of `tensor` in row-major order, without a copy if it is contiguous and on the CPU."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data


def read_json(file: BinaryIO, path: str) -> bytes:
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


def check_hash(file: BinaryIO, text: bytes, claimed: str, path: str) -> None:
    """Raise unless the header `text` and the rest of `file` after it have the claimed hash."""
    digest = hashlib.sha256(len(text).to_bytes(8, "little"))
    digest.update(text.replace(_hash_field(claimed), _hash_field(_NO_HASH)))
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    if digest.hexdigest() != claimed or text.count(_hash_field(claimed)) != 1:
        raise CheckpointError(f"'{path}' is damaged: its content does not match the hash in its header")


def _hash_field(digest: str) -> bytes:
    return f'"{HASH}":"{digest}"'.encode(errors="replace")


def _put(file: BinaryIO, digest: "hashlib._Hash", data: bytes | memoryview) -> None:
    digest.update(data)
    file.write(data)
