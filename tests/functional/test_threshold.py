"""Signed, simplex and matrix thresholds against slow loops written from Eq. 9-12 and 15."""

import itertools
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from diffsparse.functional import matrix_threshold, signed_threshold, simplex_threshold

F64 = torch.float64
VECTOR = [signed_threshold, simplex_threshold]
reproducible = settings(deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
alphas = st.lists(st.floats(-4, 4).filter(lambda x: abs(x) > 1e-6), min_size=1, max_size=12)
betas = st.floats(-8, 3)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def leaf(values, dtype=F64):
    return torch.as_tensor(values, dtype=dtype).clone().requires_grad_()


def signed_loop(alpha, beta):
    norm = sum(abs(x) for x in alpha)
    return [math.copysign(max(abs(x) - sigmoid(beta) * norm, 0.0), x) for x in alpha]


def simplex_loop(alpha, beta):
    gamma = [math.exp(x) for x in alpha]
    kept = [max(g - sigmoid(beta) * sum(gamma), 0.0) for g in gamma]
    return [k / sum(kept) if sum(kept) > 0 else 0.0 for k in kept]


def matrix_distance(alpha, row, col):
    """gamma minus both thresholds, before the relu."""
    gamma = [[math.exp(x) for x in line] for line in alpha]
    row_sum = [sum(line) for line in gamma]
    col_sum = [sum(line[j] for line in gamma) for j in range(len(gamma[0]))]
    return [
        [g - sigmoid(row[i]) * row_sum[i] - sigmoid(col[j]) * col_sum[j] for j, g in enumerate(line)]
        for i, line in enumerate(gamma)
    ]


def group_by_group(loop, alpha, beta, dims):
    outer = [d for d in range(alpha.dim()) if d not in dims]
    result = torch.empty_like(alpha)
    for place in itertools.product(*(range(alpha.shape[d]) for d in outer)):
        index = tuple(place[outer.index(d)] if d in outer else slice(None) for d in range(alpha.dim()))
        values = loop(alpha[index].flatten().tolist(), (beta if beta.dim() == 0 else beta[place]).item())
        result[index] = torch.tensor(values, dtype=F64).reshape(alpha[index].shape)
    return result


@pytest.mark.parametrize(("op", "loop"), [(signed_threshold, signed_loop), (simplex_threshold, simplex_loop)])
@pytest.mark.parametrize(
    ("shape", "dim", "dims"),
    [
        ((7,), -1, [0]),
        ((1,), 0, [0]),
        ((3, 5), 0, [0]),
        ((3, 5), -1, [1]),
        ((2, 3, 4), 1, [1]),
        ((2, 3, 4), (2, 0), [0, 2]),
        ((2, 3, 4), (-1, -2), [1, 2]),
        ((2, 3, 4), (0, 1, 2), [0, 1, 2]),
    ],
)
@pytest.mark.parametrize("scalar", [False, True])
def test_agrees_with_the_formula_group_by_group(op, loop, shape, dim, dims, scalar):
    torch.manual_seed(0)
    alpha = 2 * torch.randn(shape, dtype=F64)
    beta = torch.tensor(-2.0) if scalar else torch.randn([n for d, n in enumerate(shape) if d not in dims]) - 2
    beta = beta.to(F64)
    torch.testing.assert_close(op(alpha, beta, dim), group_by_group(loop, alpha, beta, dims))
    assert torch.equal(op(alpha, beta, dim, rgf=0.1), op(alpha, beta, dim))


@pytest.mark.parametrize("batch", [(), (2,), (2, 2)])
def test_matrix_agrees_with_the_formula(batch):
    torch.manual_seed(1)
    alpha = 2 * torch.randn(*batch, 3, 4, dtype=F64)
    row, col = torch.randn(*batch, 3, dtype=F64) - 2, torch.randn(*batch, 4, dtype=F64) - 2
    result = matrix_threshold(alpha, row, col)
    for place in itertools.product(*map(range, batch)):
        distance = matrix_distance(alpha[place].tolist(), row[place].tolist(), col[place].tolist())
        torch.testing.assert_close(result[place], torch.tensor(distance, dtype=F64).clamp(min=0))
    scalar = torch.tensor(-2.0, dtype=F64)
    torch.testing.assert_close(
        matrix_threshold(alpha, scalar, scalar),
        matrix_threshold(alpha, torch.full_like(row, -2), torch.full_like(col, -2)),
    )


@pytest.mark.parametrize("op", VECTOR)
@pytest.mark.parametrize("dim", [-1, 0, (0, 1)])
def test_gradcheck_away_from_kinks(op, dim):
    alpha = leaf([[1.5, -0.2, 0.8, 0.1], [-0.9, 1.2, 0.05, -1.4]])
    beta = leaf(torch.linspace(-2, -1.2, {-1: 2, 0: 4}.get(dim, 1)) if dim != (0, 1) else -3.0)
    value = op(alpha, beta, dim)
    assert (value == 0).any()
    assert (value != 0).any()
    assert gradcheck(lambda a, b: op(a, b, dim), (alpha, beta))
    low = leaf(beta.detach() - 6)
    assert (op(alpha, low, dim) != 0).all()
    assert gradcheck(lambda a, b: op(a, b, dim, rgf=0.1), (alpha, low))


def test_matrix_gradcheck_away_from_kinks():
    alpha, row, col = leaf([[1.5, -0.2, 0.8], [-0.9, 1.2, 0.05]]), leaf([-2.0, -3.0]), leaf([-2.5, -2.0, -3.0])
    assert 0 < (matrix_threshold(alpha, row, col) == 0).sum() < 6
    assert gradcheck(matrix_threshold, (alpha, row, col))
    low = (alpha, leaf(row.detach() - 5), leaf(col.detach() - 5))
    assert (matrix_threshold(*low) > 0).all()
    assert gradcheck(lambda a, r, c: matrix_threshold(a, r, c, rgf=0.1), low)


def factor(z, rgf):
    return 1.0 if z > 0 else (0.0 if rgf is None else rgf * math.exp(z))


@pytest.mark.parametrize("rgf", [None, 0.1, 0.4])
def test_signed_gradient_in_closed_form(rgf):
    """Reference 7.2 and 7.9: the factor also reaches beta and the shared norm; a dropped alpha feels the norm."""
    alpha, beta, g = [1.5, -0.2, 0.8, 0.1, -1.1], -2.0, [0.3, -0.7, 0.5, 0.9, -0.4]
    s, norm, sign = sigmoid(beta), sum(map(abs, alpha)), [math.copysign(1, x) for x in alpha]
    flow = [factor(abs(x) - s * norm, rgf) for x in alpha]
    shared = sum(f * e * d for f, e, d in zip(flow, sign, g, strict=True))
    a, b = leaf(alpha), leaf(beta)
    signed_threshold(a, b, rgf=rgf).backward(torch.tensor(g, dtype=F64))
    expected = [f * d - s * e * shared for f, e, d in zip(flow, sign, g, strict=True)]
    torch.testing.assert_close(a.grad, torch.tensor(expected, dtype=F64))
    torch.testing.assert_close(b.grad, torch.tensor(-s * (1 - s) * norm * shared, dtype=F64))
    assert a.grad[1] != 0  # dropped


@pytest.mark.parametrize("rgf", [None, 0.1])
@pytest.mark.parametrize("beta", [-2.0, 2.0])
def test_simplex_gradient_in_closed_form(rgf, beta):
    alpha, g = [1.0, 0.3, -2.0, 0.9], [0.3, -0.7, 0.5, 0.9]
    s, total = sigmoid(beta), sum(map(math.exp, alpha))
    p = [math.exp(x) / total for x in alpha]
    kept = sum(max(x - s, 0) for x in p)
    mean = sum(max(x - s, 0) * d for x, d in zip(p, g, strict=True)) / kept if kept else 0.0
    h = [factor(x - s, rgf) * (d - mean) / (kept or 1.0) for x, d in zip(p, g, strict=True)]
    a, b = leaf(alpha), leaf(beta)
    simplex_threshold(a, b, rgf=rgf).backward(torch.tensor(g, dtype=F64))
    inner = sum(x * d for x, d in zip(p, h, strict=True))
    torch.testing.assert_close(a.grad, torch.tensor([x * (d - inner) for x, d in zip(p, h, strict=True)], dtype=F64))
    torch.testing.assert_close(b.grad, torch.tensor(-s * (1 - s) * sum(h), dtype=F64))


@pytest.mark.parametrize("rgf", [None, 0.1])
def test_matrix_gradient_in_closed_form(rgf):
    alpha, row, col = [[1.0, 0.3, -1.0], [0.2, 1.4, -2.0]], [-1.5, -2.0], [-1.0, -2.0, -1.5]
    g = [[0.3, -0.7, 0.5], [0.9, -0.4, 0.2]]
    z, rows, cols = matrix_distance(alpha, row, col), range(2), range(3)
    h = [[factor(z[i][j], rgf) * g[i][j] for j in cols] for i in rows]
    row_h, col_h = [sum(h[i]) for i in rows], [sum(h[i][j] for i in rows) for j in cols]
    a, r, c = leaf(alpha), leaf(row), leaf(col)
    matrix_threshold(a, r, c, rgf=rgf).backward(torch.tensor(g, dtype=F64))
    for i, j in itertools.product(rows, cols):
        through = h[i][j] - sigmoid(row[i]) * row_h[i] - sigmoid(col[j]) * col_h[j]
        assert a.grad[i, j].item() == pytest.approx(math.exp(alpha[i][j]) * through)
    for i in rows:
        slope = sigmoid(row[i]) * (1 - sigmoid(row[i]))
        assert r.grad[i].item() == pytest.approx(-slope * sum(map(math.exp, alpha[i])) * row_h[i])
    for j in cols:
        slope = sigmoid(col[j]) * (1 - sigmoid(col[j]))
        assert c.grad[j].item() == pytest.approx(-slope * sum(math.exp(alpha[i][j]) for i in rows) * col_h[j])


@reproducible
@given(alphas, betas)
def test_survivors_are_fewer_than_one_over_the_fraction(alpha, beta):
    for op in VECTOR:
        survivors = (op(torch.tensor(alpha, dtype=F64), torch.tensor(beta, dtype=F64)) != 0).sum().item()
        assert survivors < (1 + 1e-9) / sigmoid(beta)


@reproducible
@given(alphas, betas, st.integers(-10, 10), st.sampled_from([-1, 1]))
def test_signed_gate_scales_with_alpha(alpha, beta, power, sign):
    alpha, beta, scale = torch.tensor(alpha, dtype=F64), torch.tensor(beta, dtype=F64), sign * 2.0**power
    assert torch.equal(signed_threshold(scale * alpha, beta), scale * signed_threshold(alpha, beta))


@reproducible
@given(alphas, betas)
def test_simplex_sums_to_one_or_is_all_zero(alpha, beta):
    a = simplex_threshold(torch.tensor(alpha, dtype=F64), torch.tensor(beta, dtype=F64))
    assert (a >= 0).all()
    assert a.sum().item() == pytest.approx(1.0) if a.any() else a.sum().item() == 0
