"""Lambda over a run, as the options of a method describe it."""

import json
import math

import pytest

from diffsparse.methods import Method, Sparsifying
from diffsparse.penalties import FixedStrength, SteeredStrength
from diffsparse.penalties.strength import WithinEpochs


def controller(epochs: int, *, keeps_zeros: bool = False, **options: float) -> WithinEpochs:
    return Method().controller(Sparsifying(**options), epochs, keeps_zeros=keeps_zeros)


def steering(made: WithinEpochs) -> SteeredStrength:
    assert isinstance(made.base, SteeredStrength)
    return made.base


def strength(made: WithinEpochs, epoch: float) -> float:
    made.observe(epoch)
    return made.strength


def test_fixed() -> None:
    made = controller(10, strength=0.3)
    assert not made.steers
    assert [strength(made, epoch) for epoch in (0, 5.5, 10)] == [0.3] * 3


def test_ramp_is_the_cubic_of_the_paper() -> None:
    made = controller(10, strength=0.3, ramp_epochs=4)
    expected = [0.3 - 0.3 * (1 - epoch / 4) ** 3 for epoch in (0, 0.5, 1, 3.9, 4)] + [0.3]
    assert [strength(made, epoch) for epoch in (0, 0.5, 1, 3.9, 4, 9)] == pytest.approx(expected)


def test_steering_by_hand_worked_numbers() -> None:
    # halfway to the time when the target is due, 1 - (1/2)^3 = 7/8 of it are wanted
    made = controller(40, strength=1.0, target=0.8)
    assert made.steers
    steered = steering(made)
    made.observe(10, 0.5, passed=0.5)
    assert steered.share == 1.0
    assert steered.factor == pytest.approx(2 ** (48 * 0.2 * 0.5 / 40))
    made.observe(10, 0.65, passed=0.5)
    assert steered.share == pytest.approx(0.05 * 8)
    # too many zeros: lambda is taken away at once, what it was is forgotten slowly
    before = steered.factor
    made.observe(30, 0.9, passed=0.5)
    assert strength(made, 30) == 0
    assert steered.factor == pytest.approx(before * 2 ** (-48 * 0.1 * 0.5 / 40))


def test_steering_stays_within_bounds_and_multiplies_the_ramp() -> None:
    made = controller(4, strength=0.01, target=1.0, ramp_epochs=2)
    for _ in range(100):
        made.observe(4, 0.0, passed=0.2)
    assert strength(made, 4) == pytest.approx(0.16)
    assert strength(made, 1) == pytest.approx(0.16 * 0.875)
    for _ in range(100):
        made.observe(0, 1.0, passed=0.2)
    steering(made).share = 1.0
    assert strength(made, 4) == pytest.approx(0.01 / 16)
    assert math.isfinite(steering(made).factor)


def test_a_delay_comes_before_everything() -> None:
    made = controller(10, strength=0.3, delay_epochs=3, ramp_epochs=4)
    assert [strength(made, epoch) for epoch in (0, 2.9, 3)] == [0.0, 0.0, 0.0]
    assert strength(made, 5) == pytest.approx(0.3 * 0.875)
    assert strength(made, 7) == pytest.approx(0.3)
    steered = controller(10, strength=0.3, delay_epochs=3, target=0.5)
    steered.observe(2, 0.0, passed=0.2)
    assert (steering(steered).factor, steering(steered).share, steered.strength) == (1.0, 1.0, 0.0)
    steered.observe(8, 0.0, passed=0.2)
    assert steered.strength > 0.3


def test_the_last_epochs_are_without_lambda() -> None:
    made = controller(10, strength=0.3, delay_epochs=2, settle_epochs=3)
    assert [strength(made, epoch) for epoch in (1.9, 2, 6.99, 7, 9.9)] == [0.0, 0.3, 0.3, 0.0, 0.0]
    assert made.over
    endless = controller(10, strength=0.3)
    assert strength(endless, 9.9) == 0.3
    assert not endless.over


def test_lambda_of_proximal_steps_stays_in_force_and_grows_when_it_is_late() -> None:
    made = controller(10, strength=0.3, target=0.5, keeps_zeros=True)
    steered = steering(made)
    made.observe(2, 0.45, passed=0.2)
    assert steered.factor == pytest.approx(2 ** (48 * (0.5 * (1 - 0.6**3) - 0.45) * 0.2 / 10))
    assert steered.share == 1.0
    # late: lambda grows as if half of all zeros were missing, beyond the bounds of gates
    before = steered.factor
    made.observe(8, 0.45, passed=0.2)
    assert steered.factor == pytest.approx(before * 2 ** (48 * 0.5 * 0.2 / 10))
    for _ in range(20):
        made.observe(8, 0.45, passed=0.2)
    assert steered.factor > 100


def test_a_target_counts_as_reached_within_one_per_cent() -> None:
    made = controller(10, target=0.5)
    assert [made.reached(zeros) for zeros in (0.48, 0.495, 0.6)] == [False, True, True]
    assert controller(10).reached(0.0)


def test_state_goes_through_json_and_a_bad_one_changes_nothing() -> None:
    made, other = controller(10, strength=0.3, target=0.5), controller(10, strength=0.3, target=0.5)
    made.observe(3, 0.1, passed=0.2)
    state = json.loads(json.dumps(made.state_dict()))
    other.load_state_dict(state)
    assert other.state_dict() == made.state_dict()
    with pytest.raises(ValueError, match="the state of a FixedStrength is a dictionary of"):
        other.load_state_dict({**state, "base": {**state["base"], "base": {}}})
    assert other.state_dict() == made.state_dict()
    assert isinstance(steering(other).base, FixedStrength)
