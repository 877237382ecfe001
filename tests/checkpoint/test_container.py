"""The bytes of the file: what other readers of safetensors see, and the hash."""

import hashlib
import io
import json
import re

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from diffsparse.checkpoint import CheckpointError, container
from diffsparse.checkpoint.container import DTYPES, parse_json, raw_bytes, write_tensors


def every_dtype():
    torch.manual_seed(0)
    return {
        f"{name}.{shape}": (torch.randn(shape) * 4).to(dtype)
        for name, dtype in DTYPES.items()
        for shape in [(), (3,), (0, 2), (2, 3)]
    }


def written(tensors, metadata=None):
    file = io.BytesIO()
    write_tensors(file, tensors, metadata or {"note": 'ümlaut "quoted"'})
    return file.getvalue()


def test_other_readers_get_the_same_tensors(tmp_path):
    tensors = every_dtype()
    (tmp_path / "file").write_bytes(written(tensors))
    read = load_file(tmp_path / "file")
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert read[name].shape == tensor.shape
        assert bytes(raw_bytes(read[name])) == bytes(raw_bytes(tensor))
    with safe_open(tmp_path / "file", framework="pt") as file:
        assert file.metadata()["note"] == 'ümlaut "quoted"'


def test_tensors_are_aligned():
    data = written({"b": torch.ones(3, dtype=torch.bool), "a": torch.ones(3, dtype=torch.float64), "c": torch.ones(3)})
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    assert {key: value["data_offsets"] for key, value in header.items() if key != "__metadata__"} == {
        "a": [0, 24],
        "c": [24, 36],
        "b": [36, 39],
    }


def test_the_hash_is_that_of_the_file_with_zeros_in_its_place():
    data = written(every_dtype())
    (digest,) = re.findall(rb'"sha256":"([0-9a-f]{64})"', data)
    assert hashlib.sha256(data.replace(digest, b"0" * 64)).hexdigest() == digest.decode()


def test_a_metadata_value_that_looks_like_the_hash_field():
    data = written({}, {"note": '"sha256":"' + "0" * 64 + '"'})
    metadata, _, _ = parse_json(data[8:], "x")
    assert metadata["note"] == '"sha256":"' + "0" * 64 + '"'
    assert metadata["sha256"] != "0" * 64


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).view(2, 3).t(),
        torch.arange(6.0)[::2],
        torch.arange(3.0).expand(2, 3),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(3, dtype=torch.complex64).conj().imag,
        torch.randn(3, requires_grad=True),
    ],
    ids=["transposed", "strided", "expanded", "conjugate", "negated", "trained"],
)
def test_bytes_of_views(tensor):
    assert bytes(raw_bytes(tensor)) == tensor.detach().resolve_conj().resolve_neg().contiguous().numpy().tobytes()


def test_a_contiguous_tensor_is_not_copied():
    tensor = torch.zeros(4)
    view = raw_bytes(tensor)
    tensor.fill_(1)
    assert bytes(view) == torch.ones(4).numpy().tobytes()


def test_a_header_too_large_for_the_format(monkeypatch):
    monkeypatch.setattr(container, "_LARGEST_HEADER", 100)
    with pytest.raises(CheckpointError, match="more than the 100"):
        written(every_dtype())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"a":1}',
        b'{"a":{"data_offsets":[0]}}',
        b'{"a":{"data_offsets":[0,1e999]}}',
        b'{"a":{"data_offsets":[0,Infinity]}}',
        b'{"__metadata__":3}',
        b'{"a":' + b"[" * 100_000,
        b"\xff\xfe{}",
    ],
)
def test_headers_that_are_none(text):
    with pytest.raises(CheckpointError, match="damaged"):
        parse_json(text, "x")
