"""Parameters sorted for an optimiser, and why decay on beta is not harmless."""

import math
import warnings

import pytest
import torch
from torch import nn

from diffsparse import (
    MatrixGate,
    SignedGate,
    SimplexGate,
    SparseSum,
    SparsityError,
    SparsityWarning,
    parameter_groups,
    sparsify,
)
from diffsparse.gating import warn_of_idle_gates


def gated_model():
    return nn.ModuleDict(
        {
            "net": sparsify(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))),
            "mix": SparseSum([nn.Linear(2, 2), nn.Identity()], SimplexGate(2)),
            "matrix": MatrixGate(3),
        }
    )


def names_by_group(model, **decay):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {group["name"]: [names[id(p)] for p in group["params"]] for group in parameter_groups(model, **decay)}


GATES = ["net.1.gate.alpha", "net.1.gate.beta", "mix.gate.alpha", "mix.gate.beta"]
GATES += ["matrix.alpha", "matrix.beta_row", "matrix.beta_col"]


def test_partition_is_exact():
    model = gated_model()
    groups = names_by_group(model)
    assert groups["gates"] == GATES
    assert groups["weights"] == [name for name, _ in model.named_parameters() if name not in GATES]
    assert "net.1.bias" in groups["weights"]


def test_decay_reaches_its_group():
    weights, gates = parameter_groups(gated_model(), weight_decay=5e-4, gate_weight_decay=2e-5)
    assert (weights["weight_decay"], gates["weight_decay"]) == (5e-4, 2e-5)
    weights, gates = torch.optim.AdamW(parameter_groups(gated_model()), weight_decay=0.03).param_groups
    assert (weights["weight_decay"], gates["weight_decay"]) == (0.03, 0.0)


def test_any_optimiser_takes_the_groups():
    model = gated_model()
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        optimizer = kind(parameter_groups(model), lr=0.1)
        assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


def test_frozen_parameters_are_left_out():
    model = gated_model()
    model["net"].requires_grad_(False)
    model["matrix"].alpha.requires_grad_(False)
    groups = names_by_group(model)
    assert groups["weights"] == ["mix.components.0.weight", "mix.components.0.bias"]
    assert groups["gates"] == ["mix.gate.alpha", "mix.gate.beta", "matrix.beta_row", "matrix.beta_col"]


def test_shared_parameters_come_once():
    gate, linear = SignedGate(3), nn.Linear(2, 2)
    tied = nn.Linear(2, 2)
    tied.weight = linear.weight
    model = nn.ModuleDict({"a": gate, "b": gate, "c": linear, "d": tied})
    assert names_by_group(model) == {"weights": ["c.weight", "c.bias", "d.bias"], "gates": ["a.alpha", "a.beta"]}


def test_an_empty_group_is_left_out():
    assert list(names_by_group(nn.Linear(2, 2))) == ["weights"]
    assert list(names_by_group(SignedGate(2))) == ["gates"]


@pytest.mark.parametrize("name", ["weight_decay", "gate_weight_decay"])
@pytest.mark.parametrize("value", [-1e-4, math.nan, math.inf, "a", True])
def test_refuses_a_bad_decay(name, value):
    with pytest.raises(SparsityError, match=f"^{name} must be a finite number of at least 0, got {value!r}"):
        parameter_groups(gated_model(), **{name: value})


def decayed(parameters_of, steps=400):
    """A gate of different entries after weight decay alone, with no loss at all."""
    gate = SignedGate.from_values(torch.linspace(0.1, 1.0, 10))
    optimizer = torch.optim.SGD(parameters_of(gate), lr=0.1)
    for _ in range(steps):
        gate.zero_grad()
        (0.0 * gate().sum()).backward()
        optimizer.step()
    return gate


def test_decay_alone_on_the_gates_drops_entries():
    gate = decayed(lambda gate: parameter_groups(gate, gate_weight_decay=0.02))
    start = SignedGate(10).beta.item()
    assert start < gate.beta.item() < 0
    assert gate.beta.item() == pytest.approx(start * (1 - 0.1 * 0.02) ** 400, rel=1e-3)
    assert 0 < (gate() == 0).sum() < 10
    assert not (decayed(parameter_groups)() == 0).any()


def test_decay_on_alpha_only_rescales():
    gate = decayed(lambda gate: [{"params": [gate.alpha], "weight_decay": 0.02}])
    assert not (gate() == 0).any()
    torch.testing.assert_close(gate() / gate().max(), torch.linspace(0.1, 1.0, 10), rtol=1e-4, atol=1e-5)
    assert gate().max() < 0.5


def test_refuses_what_is_no_module():
    with pytest.raises(SparsityError, match=r"model must be a torch\.nn\.Module, got 'x'"):
        parameter_groups("x")


def test_an_optimizer_without_the_gates_is_noticed():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.BatchNorm1d(6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = sparsify(model)
    with pytest.warns(
        SparsityWarning, match=r"gate '1.gate' \(and 1 more\) is in no parameter group.*parameter_groups"
    ):
        warn_of_idle_gates(model, optimizer)


def test_nothing_is_said_of_gates_that_are_held_or_frozen():
    model = gated_model()
    model["matrix"].requires_grad_(False)
    optimizer = torch.optim.SGD(parameter_groups(model), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_idle_gates(model, optimizer)
        warn_of_idle_gates(nn.Linear(2, 2), optimizer)


def test_gates_may_have_a_learning_rate_of_their_own():
    groups = parameter_groups(sparsify(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))), gate_lr=0.5)
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    assert {group["name"]: group["lr"] for group in optimizer.param_groups} == {"weights": 0.1, "gates": 0.5}
    with pytest.raises(SparsityError, match="gate_lr"):
        parameter_groups(sparsify(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))), gate_lr=0)
