"""The cubic ramp against its formula, and its clamps."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffsparse import GradualStrength, SparsityError


def cubic(t, initial, final, start, length):
    return final + (initial - final) * (1 - (t - start) / length) ** 3


@pytest.mark.parametrize("t", [10, 10.5, 17, 200, 439.9, 440])
def test_formula_inside_the_ramp(t):
    assert GradualStrength(1e-6, 3e-4, 10, 430).at(t) == pytest.approx(cubic(t, 1e-6, 3e-4, 10, 430), rel=1e-12)


def test_clamped_on_both_sides():
    ramp = GradualStrength(1e-6, 3e-4, 10, 430)
    assert [ramp.at(t) for t in (0, 5, 10)] == pytest.approx([1e-6] * 3, rel=1e-12)
    assert [ramp.at(t) for t in (440, 441, 500, 10**6)] == [3e-4] * 4
    # without the clamp the cube turns negative and lambda overshoots
    assert cubic(510, 1e-6, 3e-4, 10, 430) > 3e-4 * 1.004


@given(
    st.floats(0, 1), st.floats(0, 1), st.floats(0, 100), st.floats(0.1, 100), st.floats(-10, 300), st.floats(-10, 300)
)
def test_monotone_and_between_its_ends(initial, final, start, length, t, u):
    ramp = GradualStrength(initial, final, start, length)
    first, second = ramp.at(min(t, u)), ramp.at(max(t, u))
    slack = 1e-12
    assert min(initial, final) - slack <= first <= max(initial, final) + slack
    assert (second - first) * (final - initial) >= -slack


def test_steps_by_epochs_and_by_fractions():
    ramp = GradualStrength(0.0, 1.0, 1, 2)
    seen = []
    for _ in range(5):
        seen.append(ramp.strength)
        ramp.step()
    assert seen == [0.0, 0.0, 0.875, 1.0, 1.0]
    fine = GradualStrength(0.0, 1.0, 0, 2)
    for _ in range(4):
        fine.step(0.25)
    assert fine.strength == 0.875


def test_resume_goes_on_where_it_stopped():
    ramp = GradualStrength(0.1, 1.0, 2, 7)
    for _ in range(5):
        ramp.step()
    resumed = GradualStrength(0.0, 0.0, 0, 1)
    resumed.load_state_dict(json.loads(json.dumps(ramp.state_dict())))
    for _ in range(6):
        assert resumed.strength == ramp.strength
        ramp.step()
        resumed.step()


def test_state_is_a_copy():
    ramp = GradualStrength(0.0, 1.0, 0, 2)
    state = ramp.state_dict()
    ramp.step()
    ramp.load_state_dict(state)
    assert ramp.strength == 0.0


def test_refuses_a_foreign_state():
    with pytest.raises(SparsityError, match="the state of a GradualStrength is a dictionary of"):
        GradualStrength(0, 1, 0, 1).load_state_dict({"epoch": 3})


@pytest.mark.parametrize("name", ["initial", "final", "start_epoch", "epochs"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "0", True, None])
def test_refuses_bad_numbers(name, value):
    good = {"initial": 0.0, "final": 1.0, "start_epoch": 0, "epochs": 2}
    with pytest.raises(SparsityError, match=f"{name} must be"):
        GradualStrength(**{**good, name: value})


def test_refuses_an_empty_ramp():
    with pytest.raises(SparsityError, match="epochs must be a finite number above 0, got 0"):
        GradualStrength(0, 1, 0, 0)


@pytest.mark.parametrize("epochs", [math.nan, -1, "1"])
def test_refuses_a_bad_step(epochs):
    ramp = GradualStrength(0, 1, 0, 1)
    with pytest.raises(SparsityError, match="number of epochs to step must be a finite number of at least 0"):
        ramp.step(epochs)
    assert ramp.epoch == 0


@pytest.mark.parametrize("name", ["initial", "final", "start_epoch", "epochs", "epoch"])
def test_refuses_a_bad_state_and_keeps_its_own(name):
    ramp = GradualStrength(0.25, 1, 0, 1)
    before = ramp.state_dict()
    with pytest.raises(SparsityError, match=f"{name} must be a finite number.*got nan"):
        ramp.load_state_dict({**before, name: math.nan})
    assert ramp.state_dict() == before
