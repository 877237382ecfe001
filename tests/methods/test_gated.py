import json

import torch
from torch import nn

import diffsparse as ds
from diffsparse.gating import Count
from diffsparse.methods import Gated
from diffsparse.nn import SparseBatchNorm
from diffsparse.penalties import Regulariser
from tests.methods.tiny import EXAMPLE, agree, net, train


def test_gates_replace_batch_norms_and_the_penalty_is_on_them() -> None:
    method = Gated(strength=0.1, norm=ds.GroupL21(size=4), start=0.25, rgf=0.2)
    model = method.prepare(net())
    gates = [module.gate for module in model.modules() if isinstance(module, SparseBatchNorm)]
    assert len(gates) == 7
    assert all(gate.rgf == 0.2 for gate in gates)
    torch.testing.assert_close(gates[0](), torch.full((4,), 0.25))
    term = method.regulariser(model, torch.optim.SGD(model.parameters(), lr=0.1))()
    # 60 channels are 15 groups of four, each of norm 0.25 * 2
    torch.testing.assert_close(term, torch.tensor(0.1 * 15 * 0.5))


def test_gates_that_a_model_brings_are_its_own() -> None:
    model = ds.sparsify(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3)), only="1")
    assert Gated(strength=0.1).prepare(model) is model
    assert isinstance(model[2], nn.BatchNorm1d)


def test_without_batch_norms_a_sample_shows_where_gates_go() -> None:
    bare = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 2))
    model = Gated(macs=0.5, start=1.0).prepare(bare, lambda: torch.randn(8, 4))
    torch.testing.assert_close(model[2].input_gate.gate(), torch.ones(16))


def test_batch_norms_keep_their_gates_to_themselves() -> None:
    def sample() -> torch.Tensor:
        raise AssertionError("no sample is needed")

    mixed = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))
    model = Gated(strength=0.1).prepare(mixed, sample)
    assert isinstance(model[1], SparseBatchNorm)
    assert type(model[4]) is nn.Linear


def test_training_makes_zeros_that_compaction_removes() -> None:
    method = Gated(strength=0.02)
    model = train(method.prepare(net()), method)
    assert method.zeros(model).zero > 0
    small = method.compacted(model, net(), EXAMPLE)
    assert small.after.macs < small.before.macs
    assert agree(model, small.model)


def test_a_budget_steers_in_the_place_of_a_penalty() -> None:
    method = Gated(macs=0.5, due=0.5)
    assert method.shrinks
    model = method.prepare(net())
    fitted = method.fitted(model, EXAMPLE, 10)
    assert isinstance(fitted, Gated)
    assert fitted.budget is not None
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.1)
    regulariser = fitted.regulariser(model, optimizer)
    assert fitted.zeros(model).total == 60
    assert not regulariser.reached
    term = regulariser()
    assert term is not None
    assert term.requires_grad
    assert [regulariser.step_done() for _ in range(10)] == [False] * 4 + [True] + [False] * 5
    assert regulariser.reached
    assert regulariser() is None
    # gates are gone, and what was lost is still counted
    assert not any(isinstance(module, SparseBatchNorm) for module in model.modules())
    alive = fitted.budget.history[-1].alive
    assert fitted.zeros(model) == Count(zero=60 - alive, total=60)
    assert fitted.figures(model)["macs_share"] <= 0.5
    kept = fitted.to_save(model)
    assert isinstance(kept, ds.Compacted)
    assert kept.model is fitted.compacted(model, net(), EXAMPLE).model is model
    assert kept.max_difference is None


def test_the_state_of_a_budget_comes_before_that_of_the_parameters() -> None:
    def made() -> tuple[Gated, nn.Module, Regulariser]:
        model = ds.sparsify(net(), start=0.5)
        method = Gated(macs=0.5, due=0.5).fitted(model, EXAMPLE, 4)
        assert isinstance(method, Gated)
        return method, model, method.regulariser(model, torch.optim.SGD(ds.parameter_groups(model), lr=0.1))

    _, model, regulariser = made()
    assert isinstance(regulariser(), torch.Tensor)
    assert [regulariser.step_done() for _ in range(3)] == [False, True, False]
    method, again, restored = made()
    assert restored.before_restoring(json.loads(json.dumps(regulariser.state_dict())))
    assert restored.reached
    again.load_state_dict(model.state_dict())
    assert agree(again, model)
    assert method.zeros(again).zero > 0


def test_without_a_cost_nothing_shrinks() -> None:
    method = Gated(strength=0.1)
    model = method.prepare(net())
    assert method.fitted(model, EXAMPLE, 10) is method
    assert not method.shrinks
    regulariser = method.regulariser(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert not regulariser.step_done()
    assert not regulariser.before_restoring({})
    assert regulariser.reached
    assert method.to_save(model) is model
    assert method.figures(model) == {}
