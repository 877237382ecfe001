"""Differences between a file and a model, in words."""

import torch
from torch import nn

import diffsparse as ds
from diffsparse.checkpoint.loading import differences, in_words, missing_layers, split_ties
from diffsparse.checkpoint.saving import Header, TensorRecord
from tests.checkpoint.examples import Tied


def header_of(model):
    header = Header.of(model, None, {})
    header.tensors.update(
        {name: TensorRecord(dtype=t.dtype, shape=tuple(t.shape)) for name, t in model.state_dict().items()}
    )
    return header


def test_nothing_differs():
    assert differences(header_of(Tied()), Tied()) == []


def test_float_dtypes_may_differ():
    assert differences(header_of(Tied().bfloat16()), Tied()) == []


def test_names_and_shapes():
    found = differences(header_of(nn.Linear(2, 3)), nn.Linear(4, 3, bias=False))
    assert found == [
        "'bias' is in the file but not in the model",
        "'weight' has shape (3, 2) in the file and (3, 4) in the model",
    ]
    assert differences(header_of(nn.Linear(2, 3, bias=False)), nn.Linear(2, 3)) == [
        "'bias' is in the model but not in the file"
    ]


def test_other_kinds_of_numbers():
    first, second = nn.Module(), nn.Module()
    first.register_buffer("it", torch.zeros(2))
    second.register_buffer("it", torch.zeros(2, dtype=torch.int64))
    assert differences(header_of(first), second) == ["'it' is torch.float32 in the file and torch.int64 in the model"]


def test_gates_of_another_kind():
    def mix(gate):
        return ds.SparseSum([nn.Identity(), nn.Identity()], gate)

    found = differences(header_of(mix(ds.SignedGate(2))), mix(ds.SimplexGate(2)))
    assert found == [
        "'gate' is a SignedGate over dimensions [0] in the file, a SimplexGate over dimensions [0] in the model"
    ]
    rows, columns = (nn.Sequential(ds.SignedGate((3, 3), dim=dim)) for dim in (0, 1))
    assert len(differences(header_of(rows), columns)) == 1


def test_ties_that_the_file_does_not_have():
    state = Tied().state_dict()
    values = {name: tensor.clone() for name, tensor in state.items()}
    assert split_ties(values, state) == []
    values["head.weight"][0] += 1
    assert split_ties(values, state) == [
        "'head.weight' and 'embedding.weight' are one tensor in the model and two different ones in the file"
    ]


def test_layers_that_are_not_there():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    found = missing_layers(header_of(net), nn.Sequential(nn.ReLU()))
    assert found == ["'1.weight' is in the file but not in the model"]


def test_three_are_named():
    assert in_words([*"abc"]) == "a; b; c"
    assert in_words([*"abcde"]) == "a; b; c; and 2 more"
