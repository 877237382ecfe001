"""Counts of zeros by channel, layer and group, by hand."""

import json

import pytest
import torch
from torch import nn

from diffsparse import L1, GroupL21, MatrixGate, SignedGate, SimplexGate, SparseSum, SparsityError, sparsify, sparsity
from diffsparse.gating.zeros import gate_values


@pytest.fixture
def model():
    net = sparsify(nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Linear(5, 5), nn.BatchNorm1d(5)))
    net[1].gate = SignedGate.from_values([0.5, 0.0, 0.0, -0.2, 0.0])
    net[3].gate = SignedGate.from_values([0.0] * 5)
    return nn.ModuleDict(
        {
            "net": net,
            "mix": SparseSum([nn.Identity() for _ in range(4)], SimplexGate.from_values([0.5, 0.5, 0.0, 0.0])),
            "matrix": MatrixGate.from_values(torch.eye(3)),
            "batch": SignedGate.from_values([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]], dim=0),
        }
    )


def rows(result):
    return {row.name: (row.channels.zero, row.channels.total, row.dead) for row in result.gates}


def test_counts_channels_and_layers(model):
    result = sparsity(model)
    assert rows(result) == {
        "net.1": (3, 5, False),
        "net.3": (5, 5, True),
        "mix": (2, 4, False),
        "matrix": (6, 9, False),
        "batch": (4, 6, False),
    }
    assert (result.channels.zero, result.channels.total) == (20, 29)
    assert result.channels.fraction == pytest.approx(20 / 29)
    assert (result.layers.zero, result.layers.total) == (1, 5)
    assert result.groups is None


def test_counts_groups_by_size_with_a_partial_last_one(model):
    result = sparsity(model, GroupL21(size=2))
    groups = {row.name: (row.groups.zero, row.groups.total) for row in result.gates}
    # net.1 is (0.5 0)(0 -0.2)(0); rows of the identity are (1 0)(0), (0 1)(0), (0 0)(1);
    # the competition groups of `batch` are its columns, (1 0)(1) and (0 0)(0)
    assert groups == {"net.1": (1, 3), "net.3": (3, 3), "mix": (1, 2), "matrix": (3, 6), "batch": (2, 4)}
    assert (result.groups.zero, result.groups.total) == (10, 18)


def test_counts_explicit_groups():
    gate = SignedGate.from_values([0.5, 0.0, 0.0, -0.2, 0.0])
    result = sparsity(gate, GroupL21(groups=[[0, 1], [2, 4]]))
    assert (result.groups.zero, result.groups.total) == (1, 2)
    with pytest.raises(SparsityError, match=r"entry 5, but 'small\.gate' has groups of 5 entries"):
        sparsity(nn.ModuleDict({"small": nn.ModuleDict({"gate": gate})}), GroupL21(groups=[[5]]))


def test_prints_as_a_table(model):
    assert str(sparsity(model["net"], GroupL21(size=5))).splitlines() == [
        "1  zero 3/5 (60.0%)  groups 0/1 (0.0%)",
        "3  zero 5/5 (100.0%)  groups 1/1 (100.0%)  dead",
        "total: channels 8/10 (80.0%), layers 1/2 (50.0%), groups 1/2 (50.0%)",
    ]
    assert str(sparsity(model)).splitlines()[-1] == "total: channels 20/29 (69.0%), layers 1/5 (20.0%)"


def test_is_plain_data(model):
    data = json.loads(json.dumps(sparsity(model["net"], GroupL21(size=5)).as_dict()))
    assert data["channels"] == {"zero": 8, "total": 10, "fraction": 0.8}
    assert data["layers"] == {"zero": 1, "total": 2, "fraction": 0.5}
    assert data["groups"] == {"zero": 1, "total": 2, "fraction": 0.5}
    assert data["gates"][1]["name"] == "3"
    assert data["gates"][1]["dead"] is True
    assert json.loads(json.dumps(sparsity(model).as_dict()))["groups"] is None


def test_leaves_the_model_alone(model):
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.train()
    sparsity(model)
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_shared_gate_counts_once():
    gate = SignedGate(3)
    assert sparsity(nn.ModuleList([gate, gate])).channels.total == 3


def test_names_the_gate_that_holds_nan(model):
    model["net"][3].gate.beta.detach().fill_(float("inf"))
    with pytest.raises(SparsityError, match=r"beta of gate 'net\.3\.gate' must be finite numbers, got inf"):
        sparsity(model)
    model["net"][1].gate.alpha.detach()[0] = float("nan")
    with pytest.raises(SparsityError, match=r"alpha of gate 'net\.1\.gate' must be finite numbers, got nan"):
        sparsity(model)


def test_says_when_there_are_no_gates():
    with pytest.raises(SparsityError, match=r"Linear has no gates; call diffsparse\.sparsify"):
        sparsity(nn.Linear(2, 2))


def test_only_chooses_as_for_a_penalty(model):
    for only, names in [
        ("net", ["net.1", "net.3"]),
        (SimplexGate, ["mix"]),
        (lambda name, gate: gate.alpha.dim() == 2, ["matrix", "batch"]),
        (["batch", "net.1"], ["net.1", "batch"]),
    ]:
        assert [row.name for row in sparsity(model, only=only).gates] == names
    with pytest.raises(SparsityError, match="the selection 'nowhere' chooses no gate"):
        sparsity(model, only="nowhere")


@pytest.mark.parametrize("wrong", [12, L1()], ids=repr)
def test_refuses_other_groups(model, wrong):
    with pytest.raises(SparsityError, match=r"groups must be None or a GroupL21.*got"):
        sparsity(model, wrong)


def test_refuses_what_is_no_module():
    with pytest.raises(SparsityError, match=r"model must be a torch\.nn\.Module, got 'x'"):
        sparsity("x")


def test_values_by_layer(model):
    found = {name: a.tolist() for name, a in gate_values(model, only="net").items()}
    assert found == {"net.1": pytest.approx([0.5, 0.0, 0.0, -0.2, 0.0]), "net.3": [0.0] * 5}
    assert list(gate_values(model)) == [row.name for row in sparsity(model).gates]
