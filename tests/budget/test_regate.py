"""A compact network whose gates live on computes the same, and its optimiser goes on."""

from typing import Any

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse import SparsityError
from diffsparse.budget.regate import can_go_on, check_can_regate, regate
from diffsparse.budget.shrink import shrink_in_place
from diffsparse.gates import named_gates
from tests.budget.examples import NETWORKS
from tests.budget.test_shrink import step, with_zeros
from tests.compaction.architectures.attention import NormalisedAttention


@pytest.mark.parametrize("name", NETWORKS)
def test_the_gated_compact_network_computes_the_same(name: str) -> None:
    model, x = with_zeros(name)
    step(model, torch.optim.SGD(model.parameters(), lr=0.01), x)
    model.eval()
    expected, values = model(x), {key: gate() for key, gate in named_gates(model)}
    small = ds.compact(model, x[:2])
    found = regate(model, small)
    torch.testing.assert_close(found.small.model(x), expected, rtol=1e-4, atol=1e-5)
    left = dict(named_gates(found.small.model))
    for key, value in values.items():
        assert (key in left) == bool(found.kept[key])
        if key in left:
            torch.testing.assert_close(left[key](), value[found.kept[key]], rtol=1e-4, atol=1e-6)
    assert ds.compact(found.small.model, x[:2]).after.macs == small.after.macs


@pytest.mark.parametrize("name", NETWORKS)
def test_training_goes_on_with_the_state_of_what_is_left(name: str) -> None:
    model, x = with_zeros(name)
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.01, momentum=0.9)
    for _ in range(3):
        step(model, optimizer, x)
    gates = dict(named_gates(model))
    alphas = {key: optimizer.state[gate.alpha]["momentum_buffer"].clone() for key, gate in gates.items()}
    betas = {key: optimizer.state[gate.beta]["momentum_buffer"].clone() for key, gate in gates.items()}
    found = regate(model, ds.compact(model, x[:2]))
    shrink_in_place(model, found.with_gate_slices(), [optimizer], gates_stay=True)
    for key, gate in named_gates(model):
        momentum = optimizer.state[gate.alpha]["momentum_buffer"]
        assert torch.equal(momentum, alphas[key][found.kept[key]])
        assert torch.equal(optimizer.state[gate.beta]["momentum_buffer"], betas[key])
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters()}
    step(model, optimizer, x)


def test_twice_small_is_saved_and_loaded_by_both_plans(tmp_path) -> None:
    model, x = with_zeros("pre-activation")
    model.eval()
    found = regate(model, ds.compact(model, x[:2]))
    shrink_in_place(model, found.with_gate_slices(), gates_stay=True)
    model.stages[1][0].bn2.gate.set_alive(torch.arange(model.stages[1][0].bn2.num_features)[None] < 2)
    small = ds.compact(model, x[:2])
    assert len(small.plan.earlier) == 1
    ds.save(small, tmp_path / "net")
    fresh, _ = NETWORKS["pre-activation"]
    assert torch.equal(ds.load(tmp_path / "net", fresh()).eval()(x), small.model(x))


def test_gates_that_cannot_live_on_are_named() -> None:
    model = nn.Sequential(ds.SparseSum([nn.Linear(3, 3), nn.Linear(3, 3)]), ds.SparseBatchNorm1d(3))
    with pytest.raises(SparsityError, match=r"the gates of '0', a SparseSum, cannot live on .* give shrinks=1"):
        check_can_regate(model)
    check_can_regate(model[1])


def test_gates_of_rescaled_layers_wait_until_the_network_is_due() -> None:
    model = ds.sparsify(nn.Sequential(NormalisedAttention(8, 2), nn.Conv2d(8, 2, 1))).eval()
    for name, gate in named_gates(model):
        if "query" in name or "key" in name:
            gate.set_alive(torch.tensor([[True, False, False, True, False, False, True, True]]))
    small = ds.compact(model, torch.randn(2, 8, 4, 4))
    assert any(action.rescaled for action in small.plan.layers.values())  # type: ignore[attr-defined]
    steering: Any = None
    assert not can_go_on(small, regate(model, small), steering, small.example)
