"""No step moves a gate of layers in series far, and small steps are left alone."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import diffsparse as ds
from diffsparse.budget.bounds import SHARE, StepBounds
from diffsparse.budget.entries import GateEntries
from diffsparse.gates import SignedGate
from tests.budget.examples import gated


def remembered(gate: SignedGate, groups: list[bool] | None = None) -> StepBounds:
    bounds = StepBounds()
    bounds.remember(GateEntries({"gate": gate}), np.array(groups or [True] * gate.beta.numel()))
    return bounds


@pytest.mark.parametrize(("size", "dim"), [(5, -1), ((3, 4), -1), ((4, 3), 0)])
def test_a_step_ends_at_the_bound(size: int | tuple[int, ...], dim: int) -> None:
    gate = SignedGate(size, dim=dim, value=0.5)
    before, threshold = gate.alpha.detach().clone(), gate.beta.detach().clone()
    made = remembered(gate)
    (rows,) = gate.groups(gate.alpha.detach())
    gate.set_groups(rows + torch.tensor([7.0, -7.0, 0.01] + [0.0] * (gate.group_size - 3)), gate.beta.detach() - 3)
    made.apply()
    (moved,) = gate.groups(gate.alpha.detach() - before)
    assert torch.allclose(moved[:, :3], torch.tensor([SHARE * 0.5, -SHARE * 0.5, 0.01]).expand(len(moved), 3))
    assert torch.allclose(gate.beta.detach(), threshold - SHARE)


def test_other_groups_are_free() -> None:
    gate = SignedGate((2, 4))
    made = remembered(gate, [False, True])
    gate.alpha.data += 7.0
    gate.beta.data -= 3.0
    before = gate.alpha.detach().clone(), gate.beta.detach().clone()
    made.apply()
    assert torch.equal(gate.alpha[0], before[0][0])
    assert torch.equal(gate.beta[0], before[1][0])
    assert (gate.alpha[1] < 1).all()


def test_where_gates_were_counts_for_one_step() -> None:
    gate = SignedGate(5)
    made = remembered(gate)
    made.apply()
    gate.alpha.data += 7.0
    made.apply()
    assert (gate.alpha > 7).all()


def test_values_of_a_group_in_which_nothing_lives_are_free() -> None:
    gate = SignedGate(4)
    gate.beta.data.fill_(3.0)
    made = remembered(gate)
    gate.alpha.data += 7.0
    gate.beta.data -= 9.0
    made.apply()
    assert (gate.alpha > 7).all()
    assert gate.beta.item() == pytest.approx(3 - SHARE)


@pytest.mark.parametrize("name", ["chain", "pre-activation"])
def test_a_steep_loss_throws_gates_about_that_are_not_in_series(name: str) -> None:
    model, x = gated(name)
    budget = ds.Budget(model, x[:2], macs=0.5, steps=100)
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.1)

    def step(factor: float) -> None:
        loss = factor * nn.functional.cross_entropy(model(x), torch.arange(len(x)) % 2) + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(5):
        step(1.0)
        budget.step(optimizer)
    gates = [module for module in model.modules() if isinstance(module, SignedGate)]
    before = [gate().detach() for gate in gates]
    step(1e5)
    moved = lambda: any(bool((gate().detach() - old).abs().max() > 1) for gate, old in zip(gates, before, strict=True))  # noqa: E731
    assert moved()
    budget._bounds.apply()
    assert moved() == (name == "pre-activation")
    assert budget._steering.in_series.tolist() == len(gates) * [name == "chain"]


def accuracy_without_norms() -> float:
    """Of a network without norms that trains from scratch with SGD, at half of its MACs."""
    torch.manual_seed(0)
    x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    x = x.float().view(-1, 1, 8, 8) / 16
    layers = [nn.Conv2d(1, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10))
    budget = ds.Budget(ds.sparsify(model, x[:2], start=1.0), x[:2], macs=0.5, steps=140)
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.1, momentum=0.9)
    for _ in range(10):
        for batch in torch.randperm(1400).split(100):
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch]) + budget.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            budget.step(optimizer)
    return float((model(x[1400:]).argmax(1) == y[1400:]).float().mean())


def test_a_network_without_norms_trains_with_plain_sgd(monkeypatch: pytest.MonkeyPatch) -> None:
    assert accuracy_without_norms() > 0.8
    monkeypatch.setattr(StepBounds, "remember", lambda *_: None)
    assert accuracy_without_norms() < 0.5


def test_thresholds_of_a_network_without_norms_are_not_pressed() -> None:
    x = torch.randn(4, 8)
    net = lambda norm: nn.Sequential(nn.Linear(8, 8), norm, nn.ReLU(), nn.Linear(8, 2))  # noqa: E731
    for norm, pressed in ((nn.Identity(), False), (nn.BatchNorm1d(8), True)):
        model = ds.sparsify(net(norm), x, start=1.0)
        assert bool(ds.Budget(model, x, macs=0.5, steps=100).penalty() > 0) == pressed
        assert ds.Budget(model, x, macs=0.5, steps=100, strength=1e-3).penalty() > 0
