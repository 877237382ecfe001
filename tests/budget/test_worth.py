"""What an entry is worth to the loss: read from gradients just before a step; in layers in series it decides."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import diffsparse as ds
from diffsparse.budget.entries import GateEntries
from diffsparse.budget.limits import Numbers
from diffsparse.budget.steering import Steering
from diffsparse.budget.weights import FLOOR
from diffsparse.budget.worth import KEPT, Worth
from diffsparse.gates import SignedGate
from diffsparse.models import create
from diffsparse.penalties import Norm
from tests.budget.examples import gated, train


def stepped(gates: list[SignedGate], factors: list[float], worth: Worth) -> None:
    """One step of SGD on a loss with so steep gates."""
    optimizer = torch.optim.SGD([parameter for gate in gates for parameter in gate.parameters()], lr=0.0)
    worth.watch([optimizer])
    loss = sum(factor * gate().sum() for gate, factor in zip(gates, factors, strict=True))
    optimizer.zero_grad()
    loss.backward()  # type: ignore[union-attr]
    optimizer.step()


def worth_of(*gates: SignedGate) -> Worth:
    return Worth(GateEntries({f"{number}": gate for number, gate in enumerate(gates)}))


def test_worth_is_the_square_of_what_the_loss_loses() -> None:
    gates = [SignedGate(4, value=0.5), SignedGate(6, value=1.0)]
    worth = worth_of(*gates)
    assert not worth.by_entry().any()
    stepped(gates, [2.0, 3.0], worth)
    assert worth.by_entry() / worth.by_entry()[0] == pytest.approx(np.array(4 * [1.0] + 6 * [9.0]))


def test_estimates_are_averaged_and_gradients_that_are_not_finite_are_ignored() -> None:
    gate = SignedGate(4, value=1.0)
    worth = worth_of(gate)
    for factor in (1.0, 3.0, float("nan")):
        stepped([gate], [factor], worth)
    mean = KEPT * 1.0 + (1 - KEPT) * 9.0
    assert np.array(worth.state_dict()["groups"]) == pytest.approx(np.array([[mean], [4 * mean]]), rel=1e-5)
    assert worth.by_entry() == pytest.approx(np.full(4, (1 - KEPT) * (KEPT * 1.0 + 9.0)), rel=1e-5)


def test_states_are_restored() -> None:
    gates = [SignedGate(4, value=1.0), SignedGate((2, 3), value=1.0), SignedGate(5)]
    worth, again = worth_of(*gates), worth_of(*gates)
    stepped(gates[:2], [1.0, 2.0], worth)
    again.load_state_dict(worth.state_dict())
    assert again.state_dict() == worth.state_dict()
    assert again.by_entry().tolist() == worth.by_entry().tolist()
    assert worth.by_entry()[:10].all()
    assert not worth.by_entry()[10:].any()
    assert worth.state_dict()["groups"][0][-1] is None


def test_a_dead_group_keeps_what_it_was_worth() -> None:
    gates = [SignedGate(4, value=1.0), SignedGate(4, value=1.0)]
    worth = worth_of(*gates)
    stepped(gates, [1.0, 3.0], worth)
    before = worth.by_entry()
    gates[1].beta.data.fill_(5.0)
    stepped(gates, [1.0, 3.0], worth)
    after = worth.by_entry()
    assert (after[:4] > before[:4]).all()
    assert after[4:].tolist() == before[4:].tolist()


class Chain(nn.Module):
    """Behind the first norm's gates there is another norm; behind the second one's, the output."""

    def __init__(self, *, residual: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norms = nn.ModuleList([nn.BatchNorm1d(8), nn.BatchNorm1d(8)])
        self.head, self.residual = nn.Linear(8, 2), residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = F.relu(self.norms[0](self.first(x)))
        made: torch.Tensor = self.head(F.relu(self.norms[1](self.second(first) + (x if self.residual else 0))))
        return made


def trained(model: nn.Module, steps: int, **options: Any) -> ds.Budget:
    torch.manual_seed(0)
    gated, x = ds.sparsify(model, start=1.0), torch.randn(64, 8)
    budget = ds.Budget(gated, x[:2], macs=0.5, steps=1000, **options)
    optimizer = torch.optim.SGD(ds.parameter_groups(gated), lr=0.05)
    for _ in range(steps):
        loss = F.cross_entropy(gated(x), (x[:, 0] > 0).long()) + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        budget.step(optimizer)
    return budget


@pytest.mark.parametrize(("residual", "expected"), [(False, [True, False]), (True, [False, False])])
def test_a_scale_that_a_norm_takes_out_is_noticed(residual: bool, expected: list[bool]) -> None:
    assert trained(Chain(residual=residual), 8)._steering.worth.without_scale().tolist() == expected


def test_nothing_is_known_of_scales_before_the_first_step() -> None:
    assert worth_of(SignedGate(4)).without_scale().tolist() == [False]


@pytest.mark.parametrize("residual", [False, True])
def test_only_layers_in_series_are_found_and_watched_from_then_on(residual: bool) -> None:
    steering = trained(Chain(residual=residual), 11)._steering
    assert steering.in_series.tolist() == steering.worth._watched.tolist() == 2 * [not residual]
    assert steering.is_chain != residual


@pytest.mark.parametrize("pressure", [None, ds.L1()])
def test_thresholds_of_layers_in_series_are_not_pressed(pressure: Norm | None) -> None:
    for residual in (False, True):
        budget = trained(Chain(residual=residual), 11, pressure=pressure)
        budget._pressure.steer(missing=0.5, passed=0.01)
        assert (budget.penalty().item() == 0) == (pressure is None and not residual)


def with_worth(steering: Steering, worth: Numbers) -> Numbers:
    """Let entries be worth so much, and half of the cost be the limit; which of them live then."""
    steering.worth.load_state_dict({**steering.worth.state_dict(), "entries": worth.tolist()})
    steering.observe()
    return steering.look(steering.limits, steering.limits)


def test_in_series_what_is_worth_least_for_its_cost_dies_and_other_values_stay() -> None:
    steering = trained(Chain(), 11)._steering
    gates = list(steering.entries.gates.values())
    before = torch.cat([gate().detach() for gate in gates])
    worth = np.random.default_rng(0).permutation(16) + 1.0
    alive = with_worth(steering, worth * steering.weights[steering.entries.group])
    assert 0 < alive.sum() < 16
    assert worth[alive].min() > worth[~alive].max()
    after = torch.cat([gate().detach() for gate in gates])
    assert ((after != 0).numpy() == alive).all()
    assert torch.allclose(after[alive], before[alive], rtol=1e-5)


def test_in_series_what_died_last_may_come_back() -> None:
    steering = trained(Chain(), 11)._steering
    worth = np.arange(16) + 1.0
    alive = with_worth(steering, worth)
    steering.observe()
    whole = steering.limits.loosened(0.4, steering.costs.whole)
    more = steering.look(whole, whole)
    assert (more >= alive).all()
    assert more.sum() > alive.sum()


def test_a_network_with_some_layers_in_series_lands_on_its_budget() -> None:
    torch.manual_seed(0)
    model = ds.sparsify(create("densenet16", num_classes=10, in_channels=1), start=1.0)
    x, y = torch.randn(32, 1, 8, 8), torch.randint(0, 10, (32,))
    budget = ds.Budget(model, x[:2], macs=0.5, steps=60)
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.05, momentum=0.9)
    while not budget.finished:
        loss = F.cross_entropy(model(x), y) + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        budget.step(optimizer)
    assert 0 < budget._steering.in_series.sum() < len(budget._steering.in_series)
    assert 0.99 * 0.5 < budget.cost["macs"] <= 0.5


def test_a_chain_learns_before_its_entries_die() -> None:
    for residual in (False, True):
        budget = trained(Chain(residual=residual), 480)
        wanted = {look.step: look.wanted for look in budget.history}
        assert (wanted[250] == 1) != residual
        assert wanted[260] < 1


class Beside(nn.Module):
    """The scale of the inner gates is taken out, but the network can do without them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.last, self.head = nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(x + self.last(self.outer(F.relu(self.norm(self.inner(x))))))
        return y


def test_a_layer_that_the_output_can_do_without_is_not_in_series() -> None:
    steering = trained(Beside(), 11)._steering
    assert not steering.in_series.any()
    assert steering.worth.without_scale()[0]


class Picky(Chain):
    """Takes only numbers like those of the example, or gives as many rows as there are positive ones."""

    def __init__(self, *, raises: bool) -> None:
        super().__init__()
        self.raises = raises

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.raises and x.abs().max() > 20:
            raise ValueError("out of range")
        return super().forward(x if self.training or self.raises else x[x[:, 0] > 10])


@pytest.mark.parametrize("raises", [False, True])
def test_a_network_that_cannot_be_tried_on_other_numbers_is_taken_as_it_is(raises: bool) -> None:
    model, x = ds.sparsify(Picky(raises=raises), start=1.0), torch.full((4, 8), 15.0)
    budget = ds.Budget(model, x, macs=0.5, steps=100)
    assert budget._exact().responds(budget._steering.entries.group != 0)


def test_gates_in_front_of_a_depthwise_convolution_and_its_norm_have_next_to_no_weight() -> None:
    model, x = gated("separable")
    budget = ds.Budget(model, x[:2], macs=0.5, steps=1000)
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.01)
    train(model, x, budget, optimizer, 11)
    assert budget._steering.worth.without_effect().tolist() == [True, False]
    assert budget._steering.weights[0] == FLOOR
    # should entries come to matter, they are seen to
    assert budget._steering.worth._watched[0]


@pytest.mark.parametrize("shrinks", [1, 2])
def test_optimisers_are_left_as_they_were_when_the_network_is_small(shrinks: int) -> None:
    model, x = gated("chain")
    budget = ds.Budget(model, x[:2], macs=0.5, steps=40, shrinks=shrinks)
    optimizer: Any = torch.optim.SGD(ds.parameter_groups(model), lr=0.1)
    train(model, x, budget, optimizer, 5)
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    train(model, x, budget, optimizer, 35)
    assert not optimizer._optimizer_step_pre_hooks


def test_gradients_may_be_cleared_before_the_budget_steps() -> None:
    made = []
    for clears in (False, True):
        model, x = gated("chain")
        budget = ds.Budget(model, x[:2], macs=0.5, steps=40)
        optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.1)
        for _ in range(15):
            loss = F.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.long)) + budget.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if clears:
                optimizer.zero_grad()
            budget.step(optimizer)
        made.append(budget._steering.worth.state_dict())
    assert made[0] == made[1]
    assert made[0]["groups"][0][0] is not None


@pytest.mark.parametrize("by_name", [False, True])
def test_gradients_of_a_closure_are_seen(by_name: bool) -> None:
    gate = SignedGate(4, value=1.0)
    worth, optimizer = worth_of(gate), torch.optim.SGD(gate.parameters(), lr=0.0)
    worth.watch([optimizer])

    def closure() -> float:
        optimizer.zero_grad()
        loss = 3.0 * gate().sum()
        loss.backward()
        return loss.item()

    optimizer.step(closure=closure) if by_name else optimizer.step(closure)
    assert np.sqrt(worth.state_dict()["groups"][0]) == pytest.approx(np.array([3.0]))
    gate.alpha.grad = torch.full_like(gate.alpha, 7.0)  # of the step before
    optimizer.step(closure)
    assert np.sqrt(worth.state_dict()["groups"][0]) == pytest.approx(np.array([3.0]))


def test_a_budget_can_be_pickled_and_copied_on_the_way() -> None:
    model, x = gated("chain")
    budget = ds.Budget(model, x[:2], macs=0.5, steps=100)
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.1)
    train(model, x, budget, optimizer, 15)
    for again in (pickle.loads(pickle.dumps(budget)), copy.deepcopy(budget)):
        assert again.state_dict() == budget.state_dict()
        train(again.model, x, again, torch.optim.SGD(ds.parameter_groups(again.model), lr=0.1), 40)
        assert again.finished


def test_effects_that_are_rounding_errors_do_not_tell_of_scales() -> None:
    worth = worth_of(SignedGate(4), SignedGate(4))
    worth.load_state_dict({"groups": [[1.0, 1e-9], [1e-8, 1e-12]], "entries": 8 * [0.0]})
    assert worth.without_effect().tolist() == [False, True]
    assert worth.without_scale().tolist() == [True, False]
