from typing import Any

import numpy as np
import pytest
import torch

import diffsparse as ds
from diffsparse.budget.entries import GateEntries
from diffsparse.budget.limits import Limits, Mask
from diffsparse.budget.pressure import LIMIT, Pressure
from diffsparse.budget.steering import Steering
from tests.budget.examples import gated, train

STEPS = 80


def last_bounds(name: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[float, float]:
    """Between which shares of the MACs the last look before the landing leaves the network alone."""
    seen: list[tuple[Limits, Limits]] = []
    look = Steering.look

    def noted(self: Steering, most: Limits, fewest: Limits) -> Mask:
        seen.append((most, fewest))
        return look(self, most, fewest)

    monkeypatch.setattr(Steering, "look", noted)
    model, x = gated(name)
    budget = ds.Budget(model, x, macs=0.5, steps=STEPS, **options)
    train(model, x, budget, torch.optim.SGD(ds.parameter_groups(model), lr=0.01), STEPS)
    whole = budget.small.before.macs
    most, fewest = (bound.numbers[0] / whole for bound in seen[-1])
    return fewest, most


def test_where_a_pressure_acts_the_last_looks_leave_room_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    fewest, most = last_bounds("pre-activation", monkeypatch)
    assert fewest == pytest.approx(0.45, abs=1e-3)
    assert most == pytest.approx(0.55, abs=1e-3)


@pytest.mark.parametrize(("name", "options"), [("pre-activation", {"strength": 0.0}), ("chain", {})])
def test_where_only_shifts_close_entries_they_follow_the_ramp(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fewest, most = last_bounds(name, monkeypatch, **options)
    assert fewest == pytest.approx(0.5, abs=1e-6)
    assert most == pytest.approx(0.5, abs=1e-3)


def test_lambda_rises_while_the_cost_is_above_the_ramp_and_falls_while_it_is_below() -> None:
    model, _ = gated("pre-activation")
    pressure = Pressure(GateEntries(dict(ds.gates.named_gates(model))), None, 1e-3)
    strengths = []
    for missing in (0.05, 0.05, 0.01, -0.05, 0.05):
        pressure.steer(missing, passed=0.1)
        strengths.append(pressure.strength)
    assert 1e-3 < strengths[0] < strengths[1]
    assert 0 < strengths[2] < strengths[1]  # in proportion to what is missing, where that is little
    assert strengths[3] == 0
    assert strengths[4] < 2 * strengths[1]
    for _ in range(1000):
        pressure.steer(1.0, passed=0.1)
    assert pressure.strength == pytest.approx(1e-3 * LIMIT)


def test_a_share_is_zero_where_there_is_no_limit() -> None:
    whole = np.array([1000.0, 200.0, 800.0, 1.0])
    assert Limits.asked({"macs": 0.5, "bytes": 200}, whole).fractions(whole).tolist() == [0.5, 0.0, 0.25, 0.0]
