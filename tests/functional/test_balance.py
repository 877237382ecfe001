"""Balanced normalisation against loops, and towards doubly stochastic matrices."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from diffsparse.errors import SparsityError
from diffsparse.functional import balanced_normalize

F64 = torch.float64
reproducible = settings(deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def loop(matrix, iterations):
    n = len(matrix)
    for _ in range(iterations):
        rows = [sum(line) for line in matrix]
        cols = [sum(line[j] for line in matrix) for j in range(n)]
        matrix = [
            [matrix[i][j] / math.sqrt(rows[i]) / math.sqrt(cols[j]) if matrix[i][j] else 0.0 for j in range(n)]
            for i in range(n)
        ]
    return matrix


@st.composite
def total_support(draw):
    """A sum of permutation matrices with positive weights."""
    n = draw(st.integers(1, 5))
    matrix = torch.zeros(n, n, dtype=F64)
    for _ in range(draw(st.integers(1, 4))):
        order = draw(st.permutations(range(n)))
        for i, j in enumerate(order):
            matrix[i, j] += draw(st.floats(0.5, 2))
    return matrix


@pytest.mark.parametrize("iterations", [0, 1, 2, 20])
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_agrees_with_the_update(iterations, batch):
    torch.manual_seed(0)
    matrix = torch.rand(*batch, 4, 4, dtype=F64) * (torch.rand(*batch, 4, 4) > 0.4)
    balanced = balanced_normalize(matrix, iterations).reshape(-1, 4, 4)
    for one, expected in zip(balanced, matrix.reshape(-1, 4, 4).tolist(), strict=True):
        torch.testing.assert_close(one, torch.tensor(loop(expected, iterations), dtype=F64))


def test_limit_of_a_two_by_two_matrix():
    """Scaling keeps a11 a22 / (a12 a21), which fixes the doubly stochastic limit."""
    corner = 1 / (1 + math.sqrt(6))
    expected = torch.tensor([[corner, 1 - corner], [1 - corner, corner]], dtype=F64)
    torch.testing.assert_close(balanced_normalize(torch.tensor([[1.0, 3], [2, 1]], dtype=F64), 60), expected)


def test_rows_and_columns_are_treated_alike():
    torch.manual_seed(1)
    matrix = torch.rand(5, 5, dtype=F64)
    torch.testing.assert_close(balanced_normalize(matrix.mT, 3), balanced_normalize(matrix, 3).mT)


@reproducible
@given(total_support())
def test_rows_and_columns_tend_to_one_on_total_support(matrix):
    balanced = balanced_normalize(matrix, 500)
    for d in (0, 1):
        torch.testing.assert_close(balanced.sum(d), torch.ones(len(matrix), dtype=F64), rtol=0, atol=1e-3)


@reproducible
@given(st.lists(st.sampled_from([0.0, 0.0, 1e-3, 1.0, 50.0]), min_size=16, max_size=16), st.integers(0, 20))
def test_zero_pattern_is_unchanged(entries, iterations):
    matrix = torch.tensor(entries).reshape(4, 4)
    balanced = balanced_normalize(matrix, iterations)
    assert balanced.isfinite().all()
    assert torch.equal(balanced > 0, matrix > 0)


@pytest.mark.parametrize("iterations", [1, 5])
def test_gradcheck(iterations):
    torch.manual_seed(2)
    matrix = torch.rand(2, 3, 3, dtype=F64).add(0.2).requires_grad_()
    assert gradcheck(lambda m: balanced_normalize(m, iterations), matrix)


def test_empty_rows_and_columns_stay_zero_with_finite_gradients():
    matrix = torch.tensor([[0.0, 0, 0], [0, 2, 1], [0, 1, 3]], requires_grad=True)
    balanced = balanced_normalize(matrix)
    balanced.backward(torch.rand(3, 3))
    assert not balanced[0].any()
    assert not balanced[:, 0].any()
    torch.testing.assert_close(balanced[1:, 1:], balanced_normalize(matrix.detach()[1:, 1:]))
    assert matrix.grad.isfinite().all()
    empty = torch.zeros(2, 2, requires_grad=True)
    balanced_normalize(empty).sum().backward()
    assert empty.grad.isfinite().all()


def star():
    """Thirty rows have only column 3, whose sum tends to sqrt(30); their factors grow by 30^(1/4) an iteration."""
    matrix = torch.eye(32)
    matrix[:30] = torch.zeros(32).index_fill(0, torch.tensor(3), 1.0)
    return matrix


@pytest.mark.parametrize("iterations", [20, 200, 203])
def test_factors_do_not_overflow_on_a_pattern_that_cannot_be_balanced(iterations):
    balanced = balanced_normalize(star(), iterations)
    torch.testing.assert_close(balanced[:30, 3], torch.full((30,), 30**-0.5))
    torch.testing.assert_close(balanced[30:, 30:], torch.eye(2))


def test_gradients_are_finite_on_a_pattern_that_cannot_be_balanced():
    matrix = star().requires_grad_()
    balanced_normalize(matrix).backward(torch.ones(32, 32).tril())
    assert matrix.grad.isfinite().all()


def test_backward_pass_keeps_few_matrices():
    matrix = torch.rand(50, 50, requires_grad=True)
    kept = set()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.add((t.data_ptr(), t.numel())) or t, lambda t: t):
        balanced_normalize(matrix, 40)
    assert sum(numel == 2500 for _, numel in kept) <= 2 * 4 + 1


def test_autocast_leaves_it_in_float32():
    torch.manual_seed(0)
    matrix = torch.rand(6, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        balanced = balanced_normalize(matrix)
    assert torch.equal(balanced, balanced_normalize(matrix))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    torch.manual_seed(0)
    matrix = torch.rand(6, 6).to(dtype)
    balanced = balanced_normalize(matrix)
    assert balanced.dtype == dtype
    assert torch.equal(balanced, balanced_normalize(matrix.float()).to(dtype))


def test_compiles_to_one_graph():
    matrix = torch.tensor([[1.0, 3.0], [2.0, 0.0]])
    compiled = torch.compile(balanced_normalize, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(matrix, 4), balanced_normalize(matrix, 4))


@pytest.mark.parametrize(
    ("matrix", "iterations", "message"),
    [
        (torch.ones(2, 3), 20, r"square.*\(2, 3\)"),
        (torch.ones(3), 20, r"square.*\(3,\)"),
        (torch.ones(2, 2), -1, "iterations.*got -1"),
        (torch.ones(2, 2), 2.5, "iterations must be a whole number.*got 2.5"),
        ([[1.0]], 20, "matrix must be a floating-point tensor, got list"),
        (torch.ones(2, 2, dtype=torch.int64), 20, "matrix must be a floating-point.*int64"),
        (torch.ones(0, 0), 20, r"at least one entry.*\(0, 0\)"),
    ],
)
def test_wrong_arguments(matrix, iterations, message):
    with pytest.raises(SparsityError, match=message):
        balanced_normalize(matrix, iterations)
