"""The header as data: to metadata and back, and in words."""

import json

import pytest
import torch

import diffsparse as ds
from diffsparse.checkpoint import GateRecord, Header, TensorRecord
from diffsparse.compaction import Plan
from diffsparse.compaction.actions import Slice
from diffsparse.compaction.plan import Kept
from diffsparse.compaction.tensor_slice import TensorSlice

PLAN = Plan(
    tensors={"a.weight": TensorSlice(dims={0: [0, 2]})},
    layers={"a": Slice(outputs=(3, 2))},
    kept=(Kept(layer="b", reason="it is 'odd'"),),
)
HEADER = Header(
    kind="compact",
    model_class="mine.Net",
    diffsparse_version="0.1.0",
    torch_version="2.6",
    plan=PLAN,
    gates={"bn.gate": GateRecord(kind="SignedGate", rgf=0.1, dims=[0])},
    shared={"b.weight": "a.weight"},
    tensors={"a.weight": TensorRecord(dtype=torch.bfloat16, shape=(2, 3))},
    sha256="0" * 64,
)
ENTRIES = {"a.weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}


def metadata():
    return {**HEADER.to_metadata(), "sha256": "0" * 64}


def test_there_and_back():
    assert all(isinstance(value, str) for value in HEADER.to_metadata().values())
    assert Header.from_metadata(json.loads(json.dumps(metadata())), ENTRIES) == HEADER


def test_all_names():
    assert HEADER.all_tensors()["b.weight"] == HEADER.tensors["a.weight"]


def test_prints():
    text = str(HEADER)
    for part in ("compact model of class mine.Net", "6 numbers in 1 tensors, 1 gates", "format 2", "out 3 -> 2"):
        assert part in text


@pytest.mark.parametrize("key", [key for key in HEADER.to_metadata() if key != "format"] + ["sha256"])
def test_nothing_may_be_missing(key):
    short = {k: v for k, v in metadata().items() if k != key}
    with pytest.raises((KeyError, ds.SparsityError)):
        Header.from_metadata(short, ENTRIES)


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "other"}, {"kind": "plain"}, {"plan": ""}, {"plan": "{}"}, {"gates": "3"}, {"gates": '{"a":{}}'}],
)
def test_values_that_make_no_sense(wrong):
    with pytest.raises((LookupError, TypeError, AttributeError, ValueError)):
        Header.from_metadata({**metadata(), **wrong}, ENTRIES)
