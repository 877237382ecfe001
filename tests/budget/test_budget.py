"""The promises of a budget: it lands on the number, in the user's own objects, and can be stopped and resumed."""

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import diffsparse as ds
from diffsparse import Budget, SparsityError, SparsityWarning
from diffsparse.budget.steering import NEAR
from diffsparse.gates import named_gates
from tests.budget.examples import NETWORKS, chain, gated, train

STEPS = 40


def optimizer_of(model: nn.Module, kind: str = "momentum") -> torch.optim.Optimizer:
    groups = ds.parameter_groups(model)
    return {
        "sgd": lambda: torch.optim.SGD(groups, lr=0.1),
        "momentum": lambda: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
        "adam": lambda: torch.optim.Adam(groups, lr=1e-3),
        "adamw": lambda: torch.optim.AdamW(groups, lr=1e-2),
    }[kind]()


ASKED = [{"macs": 0.5}, {"macs": 0.8}, {"params": 0.6}, {"bytes": 0.7}, {"macs": 0.6, "params": 0.5}]


@pytest.mark.parametrize(
    ("name", "kind", "asked"),
    [
        *((name, "momentum", asked) for name in NETWORKS for asked in ASKED),
        *(("pre-activation", kind, {"macs": 0.5}) for kind in ("sgd", "adam", "adamw")),
    ],
    ids=str,
)
def test_it_lands_on_the_number_and_not_above(name: str, kind: str, asked: dict[str, float]) -> None:
    model, x = gated(name)
    whole = ds.measure(ds.compact(model, x[:2]).model, x[:2], latency=False)
    budget = Budget(model, x[:2], **asked, steps=STEPS)
    optimizer = optimizer_of(model, kind)
    train(model, x, budget, optimizer, STEPS)
    assert budget.finished
    assert not list(named_gates(model))
    now = ds.measure(model, x[:2], latency=False)
    for metric, share in asked.items():
        assert getattr(now, metric) <= share * getattr(whole, metric)
        assert budget.cost[metric] == getattr(now, metric) / getattr(whole, metric)
    # the narrow layers of these networks make one channel a large step
    assert max(budget.cost[metric] / share for metric, share in asked.items()) > 0.8


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("seed", range(5))
def test_at_most_one_more_entry_could_live(name: str, seed: int) -> None:
    model, x = gated(name, seed)
    budget = Budget(model, x[:2], macs=0.35 + 0.1 * seed, steps=1)
    steering, exact = budget._steering, budget._exact()
    steering.land()
    alive = steering.entries.alive()
    assert steering.limits.excess(exact.cost(alive)) <= 1
    if steering.limits.excess(exact.cost(alive)) >= NEAR:
        return
    margins = np.where(alive, -np.inf, steering.entries.margins())
    strongest = [group[np.argmax(margins[group])] for group in groups_of(steering.entries)]
    for entry in strongest:
        if not alive[entry]:
            more = alive.copy()
            more[entry] = True
            # reviving it costs too much, or it leads nowhere
            assert steering.limits.excess(exact.cost(more)) > 1 or (exact.cost(more)[0] <= exact.cost(alive)[0])


def groups_of(entries: Any) -> list[Any]:
    return [np.flatnonzero(entries.group == group) for group in range(len(entries.sizes))]


def test_untrained_gates_that_are_all_equal_are_cut_all_the_same() -> None:
    torch.manual_seed(0)
    model, x = ds.sparsify(chain(), start=0.5), torch.randn(4, 8)
    budget = Budget(model, x, macs=0.5, steps=1)
    with pytest.warns(SparsityWarning, match="optimis"):
        assert budget.step(torch.optim.SGD(model[0].parameters(), lr=0.1))
    assert 0.45 < budget.cost["macs"] <= 0.5


def test_the_output_never_dies_however_small_the_budget() -> None:
    for name in NETWORKS:
        model, x = gated(name)
        with pytest.raises(SparsityError, match="the smallest budget for this network") as error:
            Budget(model, x[:2], macs=1e-3, steps=10)
        smallest = float(str(error.value).split("macs=")[2].split(",")[0])
        budget = Budget(model, x[:2], macs=smallest, steps=10)
        train(model, x, budget, optimizer_of(model), 10)
        assert not ds.compact(model.eval(), x[:2]).constant_output, name


def test_model_and_optimiser_stay_the_same_objects() -> None:
    model, x = gated("pre-activation")
    budget = Budget(model, x[:2], macs=0.5, steps=10, due=0.5)
    optimizer = optimizer_of(model)
    held, before = model, dict(model.named_modules())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    shrunk = []
    for _ in range(9):
        loss = model(x).square().mean() + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shrunk.append(budget.step(optimizer))
        scheduler.step()
        assert (budget.penalty().item() == 0) == budget.finished
    assert shrunk == [False] * 4 + [True] + [False] * 4
    assert held is model
    left = {name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    assert left
    assert all(before[name] is module for name, module in left.items())
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}


def test_shrinking_does_not_change_what_the_model_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = gated("pre-activation")
    budget = Budget(model, x[:2], macs=0.5, steps=20, due=0.5)
    optimizer = optimizer_of(model)
    train(model, x, budget, optimizer, 9)
    budget._steering.land()
    monkeypatch.setattr(budget._steering, "land", lambda: None)
    expected = copy.deepcopy(model).eval()(x)
    assert budget.step(optimizer)
    torch.testing.assert_close(model.eval()(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shrinks", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_several_shrinks_land_as_well(name: str, shrinks: int) -> None:
    model, x = gated(name)
    budget = Budget(model, x[:2], macs=0.5, steps=STEPS, due=0.5, shrinks=shrinks)
    optimizer = optimizer_of(model)
    widths, times = [], 0
    for _ in range(STEPS):
        loss = F.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.long)) + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times += budget.step(optimizer)
        widths.append(sum(p.numel() for p in model.parameters()))
    # a network that could not go on shrinking waits until it is due
    assert 1 <= times <= shrinks
    assert sorted(widths, reverse=True) == widths
    assert 0.4 < budget.cost["macs"] <= 0.5
    small = ds.measure(model, x[:2], latency=False)
    assert small.macs == budget.small.after.macs
    assert budget.small.before.macs > small.macs


def test_the_small_model_is_saved_and_loaded_into_the_users_class(tmp_path: Any) -> None:
    for shrinks in (1, 2):
        model, x = gated("pre-activation")
        budget = Budget(model, x[:2], macs=0.4, steps=20, shrinks=shrinks)
        train(model, x, budget, optimizer_of(model), 20)
        ds.save(budget.small, tmp_path / "net")
        loaded = ds.load(tmp_path / "net", NETWORKS["pre-activation"][0]()).eval()
        assert torch.equal(loaded(x), model.eval()(x))


@pytest.mark.parametrize(("name", "shrinks"), [("pre-activation", 1), ("pre-activation", 2), ("chain", 1)])
@pytest.mark.parametrize("stop", [0, 3, 11, 12, 13, 25])
def test_a_resumed_run_is_equal_to_the_last_bit(stop: int, name: str, shrinks: int) -> None:
    def fresh() -> tuple[nn.Module, Any, Any, Any]:
        model, x = gated(name)
        budget = Budget(model, x[:2], macs=0.5, steps=30, due=0.4, shrinks=shrinks)
        return model, x, budget, optimizer_of(model, "adamw")

    model, x, budget, optimizer = fresh()
    losses = train(model, x, budget, optimizer, stop)
    saved = copy.deepcopy((budget.state_dict(), model.state_dict(), optimizer.state_dict()))
    losses += train(model, x, budget, optimizer, 30 - stop, seed=stop)

    again, x, second, other = fresh()
    second.load_state_dict(saved[0], other)
    again.load_state_dict(saved[1])
    other.load_state_dict(saved[2])
    rest = train(again, x, second, other, 30 - stop, seed=stop)
    assert rest == losses[stop:]
    assert second.history == budget.history
    assert repr(second) == repr(budget)
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key


def test_the_history_follows_the_ramp_and_ends_on_the_budget() -> None:
    model, x = gated("chain")
    budget = Budget(model, x[:2], macs=0.5, steps=STEPS, due=0.5)
    assert budget.cost == {"macs": 1.0, "params": 1.0, "bytes": 1.0}
    train(model, x, budget, optimizer_of(model), STEPS)
    steps = [look.step for look in budget.history]
    assert steps == sorted(steps)
    assert steps[-1] == 20
    assert all(look.macs <= look.wanted + 0.1 for look in budget.history)
    assert budget.history[-1].strength == 0
    assert budget.history[-1].wanted == 0.5
    assert budget.history[-1].alive < 48
    assert "macs 50.0%; reached at step 20 of 40; now macs" in repr(budget)


def test_a_penalty_can_be_differentiated_alone_before_and_after_the_end() -> None:
    model, x = gated("pre-activation")
    budget, optimizer = Budget(model, x[:2], macs=0.5, steps=8), optimizer_of(model)
    terms = []
    for _ in range(8):
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.long)).backward()
        terms.append(budget.penalty())
        terms[-1].backward()
        optimizer.step()
        budget.step(optimizer)
    assert [term.item() == 0 for term in terms] == [False] * 4 + [True] * 4


def test_only_the_chosen_gates_die() -> None:
    model, x = gated("chain")
    budget = Budget(model, x[:2], macs=0.7, steps=10, only="4*")
    train(model, x, budget, optimizer_of(model), 10)
    assert model[0].out_features == 32
    assert model[3].out_features < 16


@pytest.mark.parametrize("options", [{"pressure": ds.L1()}, {"strength": 0.0}, {"weighted": False}], ids=str)
def test_pressure_and_weights_are_choices(options: dict[str, Any]) -> None:
    model, x = gated("pre-activation")
    budget = Budget(model, x[:2], macs=0.5, steps=20, **options)
    term = budget.penalty()
    assert term.requires_grad
    assert (term.item() == 0) == (options.get("strength") == 0)
    train(model, x, budget, optimizer_of(model), 20)
    assert 0.4 < budget.cost["macs"] <= 0.5


def test_a_wrapped_model_is_made_small_inside_its_wrapper() -> None:
    model, x = gated("chain")
    wrapped = nn.DataParallel(model)
    budget = Budget(wrapped, x[:2], macs=0.5, steps=4)
    train(model, x, budget, optimizer_of(model), 4)
    assert wrapped.module is model
    assert wrapped(x).shape == (16, 3)


def test_mixed_precision_goes_on_after_the_shrink() -> None:
    model, x = gated("chain")
    budget = Budget(model, x[:2], macs=0.5, steps=10)
    optimizer = optimizer_of(model)
    for _ in range(10):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.long)) + budget.penalty()
        assert budget.penalty().dtype == torch.float32
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        budget.step(optimizer)
    assert budget.cost["macs"] <= 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"macs": 0, "steps": 10}, "macs must be"),
        ({"macs": 1e9, "steps": 10}, "more than the whole network costs"),
        ({"steps": 10}, "a budget needs a cost"),
        ({"macs": 0.5, "steps": 0}, "steps must be"),
        ({"macs": 0.5, "steps": 2.5}, "steps must be"),
        ({"macs": 0.5, "steps": 10, "due": 0}, "due must be"),
        ({"macs": 0.5, "steps": 10, "due": 1.5}, "due must be"),
        ({"macs": 0.5, "steps": 10, "shrinks": 0}, "shrinks must be"),
        ({"macs": 0.5, "steps": 10, "strength": -1}, "strength must be"),
        ({"macs": 0.5, "steps": 10, "only": "nothing*"}, "nothing"),
    ],
    ids=str,
)
def test_bad_input_gets_a_sentence(options: dict[str, Any], message: str) -> None:
    model, x = gated("chain")
    with pytest.raises(SparsityError, match=message):
        Budget(model, x[:2], **options)


def test_a_model_without_gates_is_refused() -> None:
    with pytest.raises(SparsityError, match="has no gates; call diffsparse"):
        Budget(chain(), torch.randn(2, 8), macs=0.5, steps=10)


def test_an_example_that_does_not_run_is_refused() -> None:
    model, _ = gated("chain")
    with pytest.raises(SparsityError, match="Sequential does not run on the example"):
        Budget(model, torch.randn(2, 9), macs=0.5, steps=10)


def test_more_steps_than_announced_are_warned_of_once() -> None:
    model, x = gated("chain")
    budget = Budget(model, x[:2], macs=0.5, steps=5)
    optimizer = optimizer_of(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, x, budget, optimizer, 5)
    with pytest.warns(SparsityWarning, match="made for 5 steps, and the loop goes on") as caught:
        train(model, x, budget, optimizer, 3)
    assert len(caught) == 1


def test_there_is_no_penalty_for_a_small_network_without_parameters() -> None:
    model, x = gated("chain")
    budget = Budget(model, x[:2], macs=0.5, steps=5)
    train(model, x, budget, optimizer_of(model), 4)
    budget.model = nn.Identity()
    assert budget.penalty().item() == 0


def test_asking_for_the_small_model_too_early_gets_a_sentence() -> None:
    model, x = gated("chain")
    budget = Budget(model, x[:2], macs=0.5, steps=100)
    with pytest.raises(SparsityError, match="not small yet; wait for step 50 of 100"):
        _ = budget.small


def test_a_foreign_state_is_refused_and_an_old_budget_takes_none() -> None:
    model, x = gated("chain")
    budget = Budget(model, x[:2], macs=0.5, steps=10)
    with pytest.raises(SparsityError, match="not the state of a budget for this model: it has no 'made_for'"):
        budget.load_state_dict({"step": 3})
    optimizer = optimizer_of(model)
    train(model, x, budget, optimizer, 1)
    with pytest.raises(SparsityError, match="before its first step"):
        budget.load_state_dict(budget.state_dict())


def test_nothing_is_touched_if_compaction_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = gated("chain")
    budget = Budget(model, x[:2], macs=0.5, steps=1)
    optimizer = optimizer_of(model)
    parameters = [id(p) for p in model.parameters()]

    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise SparsityError("differs")

    monkeypatch.setattr("diffsparse.budget.budget.compact", fail)
    with pytest.raises(SparsityError, match="differs"):
        budget.step(optimizer)
    assert [id(p) for p in model.parameters()] == parameters
    assert list(named_gates(model))


@pytest.mark.parametrize("shrinks", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_moving_average_follows_each_shrink(name: str, shrinks: int) -> None:
    model, x = gated(name)
    budget = Budget(model, x[:2], macs=0.5, steps=20, due=0.6, shrinks=shrinks)
    optimizer, average = optimizer_of(model), ds.MovingAverage(model, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            loss = model(x).square().mean() + budget.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update(model)
            if budget.step(optimizer):
                average.follow(budget.small)
    assert average.updates == 20
    assert ds.measure(average.model, x[:2], latency=False).macs == ds.measure(model, x[:2], latency=False).macs
    average.calibrate([x])
    torch.testing.assert_close(average.model.eval()(x), model.eval()(x), rtol=0.5, atol=0.2)


def test_a_network_that_is_below_its_number_waits_until_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = gated("pre-activation")
    budget = Budget(model, x[:2], macs=0.5, steps=4, due=1.0, shrinks=2)
    optimizer = optimizer_of(model)
    for _, gate in named_gates(model):
        gate.alpha.data[2:] *= 1e-4
    monkeypatch.setattr(budget._steering, "look", lambda *_: budget._steering.entries.alive())
    # what became small now would be gone for good
    assert [budget.step(optimizer) for _ in range(4)] == [False, False, False, True]
    assert 0.4 < budget.cost["macs"] <= 0.5


class Scaled(nn.Module):
    """A gate of one entry, which cannot die, beside one that can."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bn, self.last = nn.Linear(6, 16), ds.SparseBatchNorm1d(16), nn.Linear(16, 3)
        self.scale = ds.SignedGate(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.relu(self.bn(self.first(x)))) * self.scale()


@pytest.mark.parametrize("shrinks", [1, 3])
def test_an_entry_that_is_alone_in_its_group_is_left_alone(shrinks: int) -> None:
    torch.manual_seed(0)
    model, x = Scaled(), torch.randn(16, 6)
    budget = Budget(model, x[:2], macs=0.5, steps=60, shrinks=shrinks)
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.05)
    train(model, x, budget, optimizer, 17)
    if shrinks == 1:
        assert 0.3 < model.scale().item() < 0.7
    train(model, x, budget, optimizer, 43)
    assert 0.4 < budget.cost["macs"] <= 0.5


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 12, 3, 1, 1), nn.BatchNorm2d(12)
        self.convs = nn.ModuleList(nn.Conv2d(12, 12, 3, 1, 1) for _ in range(2))
        self.bns = nn.ModuleList(nn.BatchNorm2d(12) for _ in range(2))
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn(self.stem(x)))
        for conv, bn in zip(self.convs, self.bns, strict=True):
            x = F.relu(x + bn(conv(x)))
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_several_shrinks_of_a_residual_stream_land(kind: str) -> None:
    torch.manual_seed(0)
    model, x = ds.sparsify(Residual(), start=1.0), torch.randn(8, 3, 6, 6)
    budget = Budget(model, x[:2], macs=0.3, steps=60, shrinks=3)
    train(model, x, budget, optimizer_of(model, kind), 60)
    assert 0.2 < budget.cost["macs"] <= 0.3
    assert ds.measure(model, x[:2], latency=False).macs == budget.small.after.macs


def test_after_an_error_at_the_landing_the_next_step_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = gated("chain")
    budget = Budget(model, x[:2], macs=0.5, steps=2)
    with pytest.raises(SparsityError, match="step needs the optimiser"):
        budget.step(None)  # type: ignore[arg-type]
    optimizer = optimizer_of(model)
    with monkeypatch.context() as patch:
        patch.setattr("diffsparse.budget.budget.compact", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            budget.step(optimizer)
    assert budget.step(optimizer)
    assert budget.finished


def test_a_state_of_another_budget_is_refused_before_anything_changes() -> None:
    model, x = gated("chain")
    budget = Budget(model, x[:2], macs=0.5, steps=4)
    train(model, x, budget, optimizer_of(model), 4)
    other, _ = gated("chain")
    with pytest.raises(SparsityError, match=r"it was made with limits .*0.5.*, now .*0.4.*a longer run is a new run"):
        Budget(other, x[:2], macs=0.4, steps=4).load_state_dict(budget.state_dict())
    assert list(named_gates(other))


@pytest.mark.parametrize("steps", [1, 3])
def test_a_penalty_that_is_left_out_is_noticed(steps: int, recwarn: pytest.WarningsRecorder) -> None:
    model, x = gated("chain")
    budget, optimizer = Budget(model, x[:2], macs=0.5, steps=4 * steps - 3), optimizer_of(model)
    for _ in range(steps):
        budget.step(optimizer)
    # a single step is a cut without training, which needs no pressure
    assert [str(w.message)[:46] for w in recwarn] == ["penalty() was not called in two steps: add it "] * (steps > 1)


def test_shifts_alone_need_no_penalty() -> None:
    model, x = gated("chain")
    budget, optimizer = Budget(model, x[:2], macs=0.5, steps=8, strength=0.0), optimizer_of(model)
    for _ in range(4):
        budget.step(optimizer)
    assert budget.finished


def test_a_sum_that_the_formula_cannot_follow_is_counted_exactly() -> None:
    torch.manual_seed(0)
    parts = [nn.Linear(16, 16), nn.Linear(16, 16), nn.Identity(), nn.Linear(16, 16)]
    model = nn.Sequential(nn.Linear(6, 16), ds.SparseSum(parts), nn.Linear(16, 3))
    x = torch.randn(16, 6)
    budget = Budget(model, x[:2], params=0.6, steps=10)
    train(model, x, budget, torch.optim.SGD(ds.parameter_groups(model), lr=0.01), 10)
    assert budget.cost["params"] <= 0.6


def test_rectified_gradient_flow_behind_a_relu_is_warned_of() -> None:
    with pytest.warns(SparsityWarning, match="no effect in '1' and 1 more: .* the ReLU behind it passes no gradient"):
        Budget(ds.sparsify(chain(), start=0.5, rgf=0.1), torch.randn(2, 8), macs=0.5, steps=10)
    smooth = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.SiLU(), nn.Linear(32, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Budget(ds.sparsify(smooth, start=0.5, rgf=0.1), torch.randn(2, 8), macs=0.5, steps=10)
