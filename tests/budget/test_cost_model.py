import numpy as np
import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.budget.cost_model import CostModel
from diffsparse.budget.entries import GateEntries
from diffsparse.budget.exact import Exact
from diffsparse.example import Example
from diffsparse.gates import chosen_gates
from tests.budget.examples import NETWORKS, gated


def models_of_cost(name: str) -> tuple[GateEntries, CostModel, Exact]:
    model, x = gated(name)
    entries = GateEntries(chosen_gates(model, None))
    example = Example.of(x[:2])
    return entries, CostModel(model, example, entries), Exact(model, example, entries)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_formula_counts_what_compaction_leaves(name: str) -> None:
    entries, costs, exact = models_of_cost(name)
    draw = np.random.default_rng(0)
    for dead in (0.0, 0.1, 0.2, 0.4, 0.5):
        alive = draw.random(entries.count) >= dead
        formula, real = costs.cost(alive)[:2], exact.cost(alive)[:2]
        if name in ("chain", "separable"):
            assert formula.tolist() == real.tolist()
        else:
            # channels of a stream that several gates keep alive count as alive
            assert (formula >= real - 1e-6).all()
            assert (formula <= 1.2 * real).all()


def test_everything_alive_costs_what_the_network_costs() -> None:
    model, x = gated("pre-activation")
    entries = GateEntries(chosen_gates(model, None))
    costs = CostModel(model, Example.of(x[:2]), entries)
    plain = ds.measure(ds.compact(model, x[:2]).model, x[:2], latency=False)
    assert costs.whole.tolist() == [plain.macs, plain.params, plain.bytes, 1.0]
    assert costs.cost(np.ones(entries.count, bool)).tolist() == costs.whole.tolist()


@pytest.mark.parametrize("name", ["chain", "separable"])
def test_marginal_is_what_one_entry_less_saves(name: str) -> None:
    entries, costs, _ = models_of_cost(name)
    alive = np.random.default_rng(1).random(entries.count) >= 0.2
    marginal = costs.marginal(alive, 0)
    for entry in np.flatnonzero(alive)[::3]:
        less = alive.copy()
        less[entry] = False
        assert marginal[entry] == pytest.approx(costs.cost(alive)[0] - costs.cost(less)[0])


def test_the_model_is_left_as_it_is() -> None:
    model, x = gated("pre-activation")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    models_of_cost("pre-activation")
    CostModel(model, Example.of(x[:2]), GateEntries(chosen_gates(model, None)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training


def test_layers_without_a_live_channel_are_found_and_their_strongest_channel() -> None:
    entries, costs, _ = models_of_cost("separable")
    alive = np.ones(entries.count, bool)
    assert costs.empty_layers(alive) == set()
    # no gate is empty, and yet no channel passes both
    alive[:6], alive[12 + 6 :] = False, False
    empty = costs.empty_layers(alive)
    assert empty
    lasts = np.arange(entries.count, dtype=float)
    lasts[12] = 100.0
    lasts[3] = 50.0
    for layer in empty:
        # channel 11 lasts until its first gate dies, at 11; channel 3 until 15
        assert sorted(costs.strongest_channel(layer, lasts)) == [3, 15]
        assert layer in costs.empty_layers(costs.without_layer(layer))


def test_entries_that_are_gone_are_forgotten() -> None:
    entries, costs, _ = models_of_cost("separable")
    alive = np.random.default_rng(2).random(entries.count) >= 0.3
    before, marginal = costs.cost(alive), costs.marginal(alive, 0)
    costs.keep(alive)
    assert costs.cost(np.ones(alive.sum(), bool)).tolist() == before.tolist()
    assert costs.marginal(np.ones(alive.sum(), bool), 0).tolist() == marginal[alive].tolist()


def test_an_exact_count_says_whether_the_output_still_depends_on_the_input() -> None:
    entries, _, exact = models_of_cost("chain")
    alive = np.ones(entries.count, bool)
    assert exact.keeps_output(alive)
    alive[:32] = False
    assert not exact.keeps_output(alive)


def test_a_network_of_one_gate_on_its_own() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.gate = nn.Linear(4, 6), nn.Linear(6, 2), ds.SignedGate(6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x) * self.gate())

    entries = GateEntries(chosen_gates(net := Net(), None))
    costs = CostModel(net, Example.of(torch.randn(2, 4)), entries)
    alive = np.array([True, True, False, True, False, False])
    assert costs.cost(alive)[0] / costs.whole[0] == 0.5
