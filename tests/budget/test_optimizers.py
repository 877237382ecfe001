"""Every optimiser and everything around it goes on when the network becomes small."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import diffsparse as ds
from diffsparse import Budget, SparsityError, SparsityWarning
from diffsparse.gates import named_gates
from tests.budget.examples import gated, train

optim = torch.optim

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd, fused": partial(optim.SGD, lr=0.05, momentum=0.9, fused=True),
    "sgd, foreach": partial(optim.SGD, lr=0.05, momentum=0.9, nesterov=True, foreach=True),
    "adam, fused": partial(optim.Adam, lr=1e-3, fused=True),
    "adam, amsgrad": partial(optim.Adam, lr=1e-3, amsgrad=True, foreach=True),
    "adamw, fused": partial(optim.AdamW, lr=1e-3, fused=True),
    "adamw, tensor lr": partial(optim.AdamW, lr=torch.tensor(1e-3)),
    "adagrad": partial(optim.Adagrad, lr=1e-2),
    "rmsprop": partial(optim.RMSprop, lr=1e-3, momentum=0.9, centered=True),
    "adadelta": partial(optim.Adadelta),
    "adamax": partial(optim.Adamax, lr=1e-3),
    "nadam": partial(optim.NAdam, lr=1e-3),
    "radam": partial(optim.RAdam, lr=1e-3),
    "rprop": partial(optim.Rprop, lr=1e-4),
    "asgd": partial(optim.ASGD, lr=1e-2),
}


def held(optimizer: optim.Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_is_sliced_as_the_parameters_are(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # what is multiplied as well has tests of its own
    monkeypatch.setattr("diffsparse.budget.budget.rescale", lambda *_, **__: {})
    model, x = gated("chain")
    budget = Budget(model, x[:2], macs=0.5, steps=8, due=0.5)
    groups = ds.parameter_groups(model, weight_decay=1e-3)
    groups[0]["lr"] = 2e-3
    optimizer = OPTIMIZERS[kind](groups)
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    train(model, x, budget, optimizer, 3)
    loss = F.cross_entropy(model(x), torch.arange(len(x)) % 3) + budget.penalty()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    before = {name: (p.detach().clone(), optimizer.state[p]) for name, p in model.named_parameters()}
    assert budget.step(optimizer)
    assert held(optimizer) == {id(p) for p in model.parameters()}
    for name, p in model.named_parameters():
        if not name.endswith("weight") or "1" in name or "4" in name:
            # made from gates: trained directly from now on, with fresh state
            continue
        old, state = before[name]
        assert p.numel() < old.numel()
        # a number of the small weight is found in the old one, and its state at the same place
        place = torch.tensor([(old.flatten() == number).nonzero()[0].item() for number in p.flatten()])
        assert optimizer.state[p].keys() == state.keys()
        for key, entry in state.items():
            whole = isinstance(entry, torch.Tensor) and entry.dim() > 0
            expected = entry.flatten()[place].view(p.shape) if whole else entry
            assert torch.equal(torch.as_tensor(optimizer.state[p][key]), torch.as_tensor(expected)), (name, key)
    assert options == [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    losses = train(model, x, budget, optimizer, 4, seed=4)
    assert all(torch.isfinite(torch.tensor(losses)))
    assert 0.4 < budget.cost["macs"] <= 0.5


def test_lbfgs_is_refused_before_anything_changes() -> None:
    model, x = gated("chain")
    budget = Budget(model, x[:2], macs=0.5, steps=9)
    optimizer, before = optim.LBFGS(model.parameters()), [id(p) for p in model.parameters()]
    with pytest.raises(SparsityError, match="LBFGS keeps one history of all parameters at once"):
        budget.step(optimizer)
    assert [id(p) for p in model.parameters()] == before
    with pytest.raises(SparsityError, match="LBFGS"):
        budget.step(optim.SGD(model[0].parameters(), lr=0.1), optimizer)
    assert [id(p) for p in model.parameters()] == before


def several(model: nn.Module, kind: str) -> list[optim.Optimizer]:
    if kind == "gates apart":
        gates = {p for _, gate in named_gates(model) for p in gate.parameters()}
        parts = [[p for p in model.parameters() if p not in gates], list(gates)]
    else:
        parts = [list(layer.parameters()) for layer in model if list(layer.parameters())]
    return [optim.SGD(part, lr=0.05 * (n + 1), momentum=0.9) for n, part in enumerate(parts)]


@pytest.mark.parametrize("kind", ["gates apart", "one per layer"])
@pytest.mark.parametrize("shrinks", [1, 2])
def test_all_optimisers_become_small(kind: str, shrinks: int) -> None:
    model, x = gated("chain")
    budget = Budget(model, x[:2], macs=0.5, steps=12, due=0.5, shrinks=shrinks)
    optimizers = several(model, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SparsityWarning)
        for step in range(12):
            loss = F.cross_entropy(model(x), torch.arange(len(x)) % 3) + budget.penalty()
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            budget.step(*optimizers) if step % 2 else budget.step(optimizers)
    assert budget.finished
    assert set[int]().union(*map(held, optimizers)) == {id(p) for p in model.parameters()}
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    assert rates == [0.05 * (n + 1) for n in range(len(optimizers))]


def test_a_run_with_several_optimisers_is_resumed() -> None:
    model, x = gated("chain")
    budget, optimizers = Budget(model, x[:2], macs=0.5, steps=4, due=0.5), several(model, "gates apart")
    for _ in range(3):
        budget.penalty()
        budget.step(optimizers)
    again, _ = gated("chain")
    second, others = Budget(again, x[:2], macs=0.5, steps=4, due=0.5), several(again, "gates apart")
    second.load_state_dict(budget.state_dict(), *others)
    again.load_state_dict(model.state_dict())
    for mine, theirs in zip(others, optimizers, strict=True):
        mine.load_state_dict(theirs.state_dict())
    assert set[int]().union(*map(held, others)) == {id(p) for p in again.parameters()}


def test_gates_that_no_optimiser_holds_are_noticed() -> None:
    model, x = gated("chain")
    budget = Budget(model, x[:2], macs=0.5, steps=9)
    weights = several(model, "one per layer")
    with pytest.warns(SparsityWarning, match="gate '4.gate' is in no parameter group"):
        budget.step(optimizer for optimizer in weights if not held(optimizer) & {id(p) for p in model[4].parameters()})


@pytest.mark.parametrize("wrong", [(), (None,), (torch.zeros(2),), (nn.ReLU(),), ("sgd",), ([1],)], ids=str)
def test_anything_but_optimisers_is_refused(wrong: Any) -> None:
    model, x = gated("chain")
    with pytest.raises(SparsityError, match="step needs the optimiser of the model, or all of them"):
        Budget(model, x[:2], macs=0.5, steps=9).step(*wrong)


def test_gradients_of_a_step_that_is_accumulated_over_the_shrink_are_given_up() -> None:
    model, x = gated("chain")
    budget = Budget(model, x[:2], macs=1.0, steps=2)
    optimizer = optim.SGD(ds.parameter_groups(model), lr=0.1)
    loss = model(x).square().mean() + budget.penalty()
    loss.backward(retain_graph=True)
    assert budget.step(optimizer)
    assert all(p.grad is None for p in model.parameters())
    # a graph from before the shrink ends in the old parameters
    loss.backward()
    assert all(p.grad is None for p in model.parameters())
    model(x).square().mean().backward()
    optimizer.step()


def test_a_compiled_model_and_a_scaler_go_on() -> None:
    model, x = gated("chain")
    compiled = torch.compile(model, backend="eager")
    budget = Budget(compiled, x[:2], macs=0.5, steps=8, due=0.5)
    optimizer = optim.SGD(ds.parameter_groups(model), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scheduler = optim.lr_scheduler.SequentialLR(
        optimizer,
        [optim.lr_scheduler.LinearLR(optimizer, total_iters=2), optim.lr_scheduler.StepLR(optimizer, 2)],
        milestones=[2],
    )
    for _ in range(8):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(compiled(x).float(), torch.arange(len(x)) % 3) + budget.penalty()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        budget.step(optimizer)
    assert budget.finished
    torch.testing.assert_close(compiled(x), copy.deepcopy(model)(x))
    assert optimizer.param_groups[0]["lr"] < 1e-2


@pytest.mark.parametrize("frozen", ["whole gate", "threshold"])
def test_frozen_gates_are_left_alone(frozen: str) -> None:
    model, x = gated("chain")
    parameters = model[1].gate.parameters() if frozen == "whole gate" else [model[1].gate.beta]
    for parameter in parameters:
        parameter.requires_grad_(False)
    alpha, beta = model[1].gate.alpha, model[1].gate.beta
    before = beta.clone(), alpha.clone()
    budget = Budget(model, x[:2], macs=0.8, steps=6)
    assert "1 frozen gate(s) left alone" in repr(budget)
    train(model, x, budget, optim.SGD(ds.parameter_groups(model), lr=0.05), 6)
    assert torch.equal(beta, before[0])
    assert torch.equal(alpha, before[1]) or frozen == "threshold"
    assert model[0].out_features == 32
    assert model[3].out_features < 16


def test_if_all_gates_are_frozen_there_is_nothing_to_steer() -> None:
    model, x = gated("chain")
    for _, gate in named_gates(model):
        gate.requires_grad_(False)
    with pytest.raises(SparsityError, match="all gates are frozen"):
        Budget(model, x[:2], macs=0.8, steps=6)


def test_a_number_of_macs_is_for_one_sample() -> None:
    model, x = gated("chain")
    one = ds.measure(ds.compact(model, x[:1]).model, x[:1], latency=False)
    found = [Budget(copy.deepcopy(model), x[:n], macs=one.macs // 2, steps=3) for n in (1, 2, 16)]
    assert len({budget._made_for["limits"]["macs"] for budget in found}) == 1
    assert found[0]._made_for["limits"]["macs"] == pytest.approx(0.5, abs=0.01)
    with pytest.raises(SparsityError, match=f"{one.macs:,} for one sample"):
        Budget(model, x[:4], macs=one.macs + 1, steps=3)
    assert Budget(model, x[:4], params=one.params // 2, steps=3)._made_for["limits"]["params"] < 0.51


def test_an_optimiser_that_is_not_given_is_noticed() -> None:
    x = torch.randn(8, 16)
    model = ds.sparsify(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)), x)
    gates = [parameter for name, parameter in model.named_parameters() if "gate" in name]
    weights = [parameter for name, parameter in model.named_parameters() if "gate" not in name]
    budget = ds.Budget(model, x, macs=0.5, steps=10)
    first, second = torch.optim.SGD(gates, 0.1), torch.optim.Adam(weights, 0.01)
    (model(x).square().mean() + budget.penalty()).backward()
    first.step()
    second.step()
    with pytest.warns(ds.SparsityWarning, match=r"'0\.weight' \(and 3 more\) gets gradients, but no optimiser"):
        budget.step(first)
