"""The simplex gate: its start, and a start at any given values."""

import math

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from diffsparse.errors import SparsityError
from diffsparse.gates import SimplexGate

reproducible = settings(deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
entries = st.one_of(st.just(0.0), st.floats(-25, 0).map(lambda e: 10.0**e))


def literal(alpha, beta):
    gamma = [math.exp(x) for x in alpha]
    kept = [max(g - sum(gamma) / (1 + math.exp(-beta)), 0.0) for g in gamma]
    return [k / sum(kept) for k in kept]


def assert_same_start(gate, wanted):
    got = gate().detach()
    assert torch.equal(got > 0, wanted > 0)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 64, 2048])
def test_starts_uniform(n):
    torch.testing.assert_close(SimplexGate(n)().detach(), torch.full((n,), 1 / n))


def test_value_is_the_formula_of_each_group():
    torch.manual_seed(0)
    gate = SimplexGate((3, 4), dim=0, dtype=torch.float64)
    gate.alpha.detach().normal_()
    gate.beta.detach().fill_(-1.5)
    for j in range(4):
        assert gate()[:, j].tolist() == pytest.approx(literal(gate.alpha[:, j].tolist(), -1.5))


@reproducible
@given(st.lists(entries, min_size=0, max_size=20), st.integers(0, 20))
@example([], 0)
@example([1e-30], 0)
@example([1e-30, 0.0, 0.3], 1)
def test_from_values_round_trip(others, place):
    """One entry of 1 among smaller ones, then divided by the sum."""
    place = min(place, len(others))
    wanted = torch.tensor([*others[:place], 1.0, *others[place:]])
    wanted = wanted / wanted.sum()
    assert_same_start(SimplexGate.from_values(wanted), wanted)


@pytest.mark.parametrize("n", [2, 17, 64, 256, 2048, 8192])
def test_from_values_keeps_tiny_values_in_large_groups(n):
    torch.manual_seed(n)
    wanted = torch.rand(n) * 10 ** torch.empty(n).uniform_(-20, 0)
    wanted[torch.rand(n) < 0.3] = 0
    wanted[0] = 1.0
    wanted = wanted / wanted.sum()
    assert_same_start(SimplexGate.from_values(wanted), wanted)


def test_from_values_of_batched_groups():
    wanted = torch.tensor([[[0.5, 0.0], [0.5, 1.0]], [[0.25, 0.0], [0.75, 1.0]]], dtype=torch.float64)
    gate = SimplexGate.from_values(wanted, dim=1, rgf=0.1)
    assert gate.rgf == 0.1
    torch.testing.assert_close(gate().detach(), wanted, rtol=1e-12, atol=1e-12)
    gate = SimplexGate.from_values(wanted / 4, dim=(0, 1, 2))
    torch.testing.assert_close(gate().detach(), wanted / 4, rtol=1e-12, atol=1e-12)


def test_from_values_keeps_the_paper_beta_and_half_way_dropped_entries():
    gate = SimplexGate.from_values(torch.tensor([0.75, 0.25, 0.0], dtype=torch.float64))
    assert gate.beta.item() == pytest.approx(-math.log(11))
    gamma = gate.alpha.detach().exp()
    assert (gamma[2] / gamma.sum()).item() == pytest.approx(0.5 / 12)


def test_all_dropped_group_is_zero_with_finite_gradients():
    for rgf in (None, 0.1):
        gate = SimplexGate((2, 3), rgf=rgf)
        gate.beta.detach().fill_(5.0)
        gate().backward(torch.rand(2, 3))
        assert not gate().any()
        assert all(p.grad.isfinite().all() for p in gate.parameters())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SimplexGate(0), "size=0"),
        (lambda: SimplexGate(3, rgf=-1.0), "rgf must.*got -1.0"),
        (lambda: SimplexGate.from_values([1.25, -0.25]), "must not be negative, got -0.25"),
        (lambda: SimplexGate.from_values([0.5, 0.25]), "sum to 1 in every group, got a sum of 0.75"),
        (lambda: SimplexGate.from_values([0.0, 0.0]), "got a sum of 0"),
        (lambda: SimplexGate.from_values([[0.5, 0.5], [0.5, 1.5]]), "got a sum of 2"),
        (lambda: SimplexGate.from_values([1.0, math.nan]), "finite numbers, got nan"),
        (lambda: SimplexGate.from_values(torch.empty(0)), r"size=torch.Size\(\[0\]\)"),
    ],
)
def test_wrong_arguments(build, message):
    with pytest.raises(SparsityError, match=message):
        build()
