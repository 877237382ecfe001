"""Proximal operators against loops, and against the problems that Eq. 3 and 5 solve."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from diffsparse.errors import SparsityError
from diffsparse.functional import proximal_exclusive_l12, proximal_group_l21, proximal_l1

F64 = torch.float64
ALL = [proximal_l1, proximal_group_l21, proximal_exclusive_l12]
reproducible = settings(deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
weights = st.lists(st.one_of(st.just(0.0), st.floats(-3, 3)), min_size=1, max_size=8)
steps = st.floats(0, 2)


def soft(w, t):
    return [math.copysign(max(abs(x) - t, 0.0), x) for x in w]


def group(w, step):
    norm = math.hypot(*w)
    return [x * max(norm - step, 0.0) / norm if norm else 0.0 for x in w]


def exclusive(w, step):
    return soft(w, step * sum(map(abs, w)))


LOOPS = {proximal_l1: soft, proximal_group_l21: group, proximal_exclusive_l12: exclusive}


@reproducible
@given(weights, steps)
def test_agrees_with_the_formula(w, step):
    for op, loop in LOOPS.items():
        torch.testing.assert_close(op(torch.tensor(w, dtype=F64), step), torch.tensor(loop(w, step), dtype=F64))


@pytest.mark.parametrize("op", [proximal_group_l21, proximal_exclusive_l12])
def test_groups_along_other_dimensions(op):
    torch.manual_seed(0)
    w = torch.randn(3, 4, 2, dtype=F64)
    for d in range(3):
        rows = w.movedim(d, -1)
        result = op(w, 0.3, d).movedim(d, -1)
        for i in range(rows.shape[0]):
            for j in range(rows.shape[1]):
                expected = LOOPS[op](rows[i, j].tolist(), 0.3)
                torch.testing.assert_close(result[i, j], torch.tensor(expected, dtype=F64))
    joint = op(w, 0.3, (0, 2))
    for j in range(4):
        expected = torch.tensor(LOOPS[op](w[:, j].flatten().tolist(), 0.3), dtype=F64)
        torch.testing.assert_close(joint[:, j].flatten(), expected)


@pytest.mark.parametrize(
    ("op", "norm"), [(proximal_l1, lambda v: v.abs().sum(-1)), (proximal_group_l21, lambda v: v.norm(dim=-1))]
)
@pytest.mark.parametrize("step", [0.1, 0.8, 3.0])
def test_minimises_its_problem(op, norm, step):
    """No nearby point is better for ||v - w||^2 / 2 + step * norm(v)."""
    torch.manual_seed(0)
    w = torch.randn(5, dtype=F64)
    v = op(w, step)
    near = v + torch.randn(500, 5, dtype=F64) * torch.logspace(-5, 0, 500, dtype=F64).unsqueeze(1)

    def objective(x):
        return (x - w).square().sum(-1) / 2 + step * norm(x)

    assert (objective(near) >= objective(v)).all()


@pytest.mark.parametrize("op", ALL)
@pytest.mark.parametrize("step", [0.05, 0.3])
def test_gradcheck_away_from_kinks(op, step):
    w = torch.tensor([[1.5, -0.1, 0.7], [-0.02, 0.01, 0.03]], dtype=F64, requires_grad=True)
    assert gradcheck(lambda x: op(x, step), w)


@pytest.mark.parametrize("op", ALL)
def test_zero_group_stays_zero_with_finite_gradient(op):
    w = torch.zeros(2, 3, requires_grad=True)
    value = op(w, 0.5)
    value.sum().backward()
    assert not value.any()
    assert w.grad.isfinite().all()


@pytest.mark.parametrize("op", ALL)
def test_step_of_zero_changes_nothing(op):
    w = torch.tensor([[1.5, -0.1, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(op(w, 0.0), w)


@pytest.mark.parametrize("op", ALL)
@pytest.mark.parametrize("step", [-0.5, math.nan, math.inf, True])
def test_wrong_step(op, step):
    with pytest.raises(SparsityError, match=f"proximal step.*got {step}"):
        op(torch.ones(3), step)


@pytest.mark.parametrize("op", ALL)
def test_refuses_what_is_no_tensor(op):
    with pytest.raises(SparsityError, match="w must be a floating-point tensor, got list"):
        op([1.0, 2.0], 0.1)


@pytest.mark.parametrize("op", [proximal_group_l21, proximal_exclusive_l12])
@pytest.mark.parametrize(("dim", "message"), [(2, "dim=2 is out of range for w"), ((0, 0), r"dim=\(0, 0\).*w twice")])
def test_wrong_dim(op, dim, message):
    with pytest.raises(SparsityError, match=message):
        op(torch.ones(2, 3), 0.1, dim)
