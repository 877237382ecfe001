"""Files that are missing, foreign, damaged or too new: always one clear error."""

import json
import random
import re

import pytest
import safetensors.torch
import torch
from torch import nn

from diffsparse.checkpoint import CheckpointError, load, read_header, save
from diffsparse.checkpoint.container import write_tensors
from tests.checkpoint.examples import compact_resnet, copied, gated_resnet, resnet, same_state


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Bytes of a compact and a gated file."""
    folder = tmp_path_factory.mktemp("files")
    found = {}
    for name, model in (("compact", compact_resnet()), ("gated", gated_resnet())):
        save(model, folder / name)
        found[name] = (folder / name).read_bytes()
    return found


def header_end(data):
    return 8 + int.from_bytes(data[:8], "little")


def refused(path, message, model=None):
    """Both readers raise one error that names the file, and the model stays as it is."""
    model = resnet() if model is None else model
    before = copied(model.state_dict())
    for read in (lambda: load(path, model), lambda: read_header(path)):
        with pytest.raises(CheckpointError, match=message) as caught:
            read()
        assert str(path) in str(caught.value)
    assert same_state(before, model.state_dict())


def test_missing_file(tmp_path):
    refused(tmp_path / "no", "there is no file")


def test_folder(tmp_path):
    refused(tmp_path, "is a folder")


def test_a_file_in_place_of_a_folder(tmp_path):
    (tmp_path / "file").touch()
    refused(tmp_path / "file" / "net", "cannot read .*: Not a directory")


@pytest.mark.parametrize("legacy", [False, True])
def test_pickle_is_not_opened(tmp_path, legacy, monkeypatch):
    torch.save(resnet().state_dict(), tmp_path / "net.pt", _use_new_zipfile_serialization=not legacy)
    monkeypatch.setattr(torch, "load", None)
    refused(tmp_path / "net.pt", "is a pickle, as torch.save writes it")


@pytest.mark.parametrize("length", [0x480, 0x580])
def test_a_header_length_that_looks_like_a_pickle(tmp_path, length):
    path, model = tmp_path / "net", nn.Linear(2, 2)
    save(model, path)
    metadata = read_header(path).to_metadata()
    metadata["padding"] = "x" * (length - header_end(path.read_bytes()) + 8 - len(',"padding":""'))
    with open(path, "wb") as file:
        write_tensors(file, model.state_dict(), metadata)
    assert path.read_bytes()[:2] == length.to_bytes(2, "little")
    assert same_state(load(path, nn.Linear(2, 2)).state_dict(), model.state_dict())


@pytest.mark.parametrize("data", [b"", b"abc", b"hello world, this is text", bytes(64), b"\xff" * 64])
def test_anything_else(tmp_path, data):
    (tmp_path / "net").write_bytes(data)
    refused(tmp_path / "net", "truncated, damaged or no safetensors file")


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_foreign_safetensors(tmp_path, metadata):
    safetensors.torch.save_file(resnet().state_dict(), tmp_path / "net", metadata)
    refused(tmp_path / "net", "not one that diffsparse wrote")


def test_newer_format(tmp_path, files):
    metadata = json.loads(files["gated"][8 : header_end(files["gated"])])["__metadata__"]
    with open(tmp_path / "net", "wb") as file:
        write_tensors(file, {}, {**metadata, "format_version": "3"})
    refused(tmp_path / "net", "format version 3, newer than 2.*update diffsparse")


def test_an_older_format(tmp_path, files):
    metadata = json.loads(files["compact"][8 : header_end(files["compact"])])["__metadata__"]
    with open(tmp_path / "net", "wb") as file:
        write_tensors(file, {}, {**metadata, "format_version": "1"})
    refused(tmp_path / "net", "written by diffsparse 0.1 in format version 1, .*compact the model again and save it")


def test_a_newer_plan(tmp_path, files):
    text = files["compact"][8 : header_end(files["compact"])]
    metadata = json.loads(text)["__metadata__"]
    metadata["plan"] = metadata["plan"].replace('"format":2', '"format":99')
    with open(tmp_path / "net", "wb") as file:
        write_tensors(file, {}, metadata)
    refused(tmp_path / "net", "cannot be understood: this plan has format 99")


@pytest.mark.parametrize("missing", ["kind", "plan", "gates", "shared"])
def test_a_valid_hash_around_nonsense(tmp_path, files, missing):
    metadata = json.loads(files["gated"][8 : header_end(files["gated"])])["__metadata__"]
    del metadata[missing]
    with open(tmp_path / "net", "wb") as file:
        write_tensors(file, {}, metadata)
    refused(tmp_path / "net", "cannot be understood")


def test_truncated_in_the_tensors(tmp_path, files):
    data = files["compact"]
    (tmp_path / "net").write_bytes(data[:-1])
    refused(tmp_path / "net", rf"is truncated: {len(data) - header_end(data) - 1} bytes of tensors instead of")


@pytest.mark.parametrize("kind", ["compact", "gated"])
def test_truncated_anywhere(tmp_path, files, kind):
    data, rng = files[kind], random.Random(0)
    end = header_end(data)
    for length in [1, 7, 8, 9, end - 1, end, end + 1, *rng.sample(range(len(data)), 20)]:
        (tmp_path / "net").write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=re.escape(str(tmp_path / "net"))):
            load(tmp_path / "net", resnet())


def test_bytes_behind_the_end(tmp_path, files):
    (tmp_path / "net").write_bytes(files["gated"] + b"\0")
    refused(tmp_path / "net", "does not match the hash")


@pytest.mark.parametrize("part", ["length", "header", "tensors"])
@pytest.mark.parametrize("kind", ["compact", "gated"])
def test_a_flipped_bit_anywhere(tmp_path, files, kind, part):
    data, rng = files[kind], random.Random(1)
    end = header_end(data)
    places = {"length": range(8), "header": range(8, end), "tensors": range(end, len(data))}[part]
    # every bit of the length, and the end of the header, which is padding, besides random ones
    chosen = [*places] * 8 if part == "length" else rng.choices(places, k=150)
    for number, place in enumerate([*chosen, places[0], places[-1]]):
        bad = bytearray(data)
        bad[place] ^= 1 << (number // 8 % 8 if part == "length" else rng.randrange(8))
        (tmp_path / "net").write_bytes(bad)
        with pytest.raises(CheckpointError, match=re.escape(str(tmp_path / "net"))):
            read_header(tmp_path / "net")
    refused(tmp_path / "net", "hash|damaged|truncated")


def test_whitespace_in_the_padding_is_noticed(tmp_path, files):
    data = files["gated"]
    end = header_end(data)
    text = data[8:end].rstrip() + b"\t" * 8
    (tmp_path / "net").write_bytes(len(text).to_bytes(8, "little") + text + data[end:])
    refused(tmp_path / "net", "does not match the hash")


def test_swapped_tensors_are_noticed(tmp_path):
    model = nn.Linear(2, 2)
    save(model, tmp_path / "net")
    data = (tmp_path / "net").read_bytes()
    (tmp_path / "net").write_bytes(data[:-24] + data[-16:] + data[-24:-16])
    refused(tmp_path / "net", "does not match the hash")
