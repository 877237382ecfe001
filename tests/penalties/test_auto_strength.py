"""A lambda from the length of a run."""

import math

import pytest

import diffsparse as ds
from diffsparse.penalties.strength import ADAPTIVE, LARGEST, TRAVEL, Pace


def travelled(strength: float, rates: list[float], momentum: float) -> float:
    """How far plain SGD moves a number against a slope of `strength`, step by step."""
    place, velocity = 0.0, 0.0
    for rate in rates:
        velocity = momentum * velocity + strength
        place += rate * velocity
    return place


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_gates_can_travel_as_far_as_in_the_formula(momentum: float) -> None:
    rates = [0.05 * (1 + math.cos(math.pi * step / 5000)) for step in range(5000)]
    strength = ds.auto_strength(sum(rates), momentum=momentum)
    assert strength == pytest.approx(TRAVEL * (1 - momentum) / sum(rates))
    assert travelled(strength, rates, momentum) == pytest.approx(TRAVEL, rel=0.01)
    assert Pace(total_rate=sum(rates), momentum=momentum).travel(strength) == pytest.approx(TRAVEL)


def test_the_rule_of_thumb_for_momentum_is_the_same_formula() -> None:
    assert ds.auto_strength(31.5, momentum=0.9) == pytest.approx(0.5 / 31.5)
    assert ds.auto_strength(1000.0) == pytest.approx(5 / 1000)


def test_a_short_run_gets_no_more_than_a_network_bears() -> None:
    assert ds.auto_strength(1.0) == LARGEST
    assert Pace(total_rate=1.0).too_short
    assert not Pace(total_rate=20.0).too_short
    assert not Pace(total_rate=2.0, momentum=0.9).too_short


def test_adam_moves_gates_whatever_lambda_is() -> None:
    assert ds.auto_strength(0.1, adaptive=True) == ds.auto_strength(100.0, adaptive=True) == ADAPTIVE
    pace = Pace(total_rate=0.3, momentum=0.9, adaptive=True)
    assert pace.travel(1e-9) == pace.travel(1.0) == 0.3
    assert pace.travel(0.0) == 0
    assert pace.too_short
    assert not Pace(total_rate=3.0, adaptive=True).too_short


def test_proximal_steps_bear_any_lambda() -> None:
    pace = Pace(total_rate=1.0, direct=True)
    assert pace.auto_strength() == TRAVEL
    assert not pace.too_short


def test_momentum_of_one_is_no_division_by_zero() -> None:
    assert 0 < ds.auto_strength(1.0, momentum=1.0) < 0.01


@pytest.mark.parametrize(("rate", "momentum"), [(0.0, 0.9), (-1.0, 0.9), (math.nan, 0.9), (1.0, 1.5), (1.0, -0.1)])
def test_refuses_mistakes(rate: float, momentum: float) -> None:
    with pytest.raises(ds.SparsityError, match="must be a finite number"):
        ds.auto_strength(rate, momentum=momentum)
