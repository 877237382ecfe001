"""The limit of balancing: closed forms, its gradient against differences and against unrolled iterations."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from diffsparse.errors import SparsityError
from diffsparse.functional import balanced_limit, balanced_normalize

F64 = torch.float64
PATTERNS = {
    "full": [[1, 1, 1], [1, 1, 1], [1, 1, 1]],
    "ring": [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1]],
    "two blocks": [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]],
    "empty row and column": [[0, 1, 1], [0, 1, 1], [0, 0, 0]],
    "one": [[1]],
}
each_pattern = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)


def random_on(pattern, seed=0):
    """Positive values in the places of `pattern`, and a function that puts such values into a matrix."""
    places = torch.tensor(pattern, dtype=torch.bool)
    values = torch.rand(int(places.sum()), generator=torch.Generator().manual_seed(seed), dtype=F64).add(0.2)
    return values, lambda v: torch.zeros(places.shape, dtype=F64).masked_scatter(places, v)


def test_two_by_two_in_closed_form():
    """Scaling keeps a11 a22 / (a12 a21) = t, so the corner is sqrt(t) / (1 + sqrt(t)), and so its derivative."""
    matrix = torch.tensor([[1.0, 3.0], [2.0, 1.0]], dtype=F64, requires_grad=True)
    balanced = balanced_limit(matrix, tolerance=1e-13)
    root = math.sqrt(1 / 6)
    corner = root / (1 + root)
    expected = torch.tensor([[corner, 1 - corner], [1 - corner, corner]], dtype=F64)
    torch.testing.assert_close(balanced.detach(), expected)
    balanced[0, 0].backward()
    slope = root / (1 + root) ** 2 / 2
    torch.testing.assert_close(matrix.grad, slope * torch.tensor([[1, -1 / 3], [-1 / 2, 1]], dtype=F64))


@each_pattern
def test_rows_and_columns_that_are_not_empty_sum_to_one(pattern):
    values, place = random_on(pattern)
    matrix = place(values)
    balanced = balanced_limit(matrix, tolerance=1e-12)
    assert torch.equal(balanced > 0, matrix > 0)
    for d in (0, 1):
        torch.testing.assert_close(balanced.sum(d), matrix.any(d).to(F64))


@each_pattern
def test_gradcheck(pattern):
    values, place = random_on(pattern)
    assert gradcheck(lambda v: balanced_limit(place(v), tolerance=1e-13), values.requires_grad_())


@each_pattern
def test_value_and_gradient_are_those_of_many_iterations(pattern):
    values, place = random_on(pattern, seed=1)
    weights = torch.randn(len(pattern), len(pattern), generator=torch.Generator().manual_seed(2), dtype=F64)
    got = []
    for balance in (lambda m: balanced_limit(m, tolerance=1e-13), lambda m: balanced_normalize(m, 600)):
        free = values.clone().requires_grad_()
        balanced = balance(place(free))
        (balanced * weights).sum().backward()
        got.append((balanced.detach(), free.grad))
    torch.testing.assert_close(got[0], got[1])


def test_scaling_a_row_or_column_changes_nothing():
    torch.manual_seed(0)
    matrix = torch.rand(20, 20, requires_grad=True)
    balanced_limit(matrix).backward(torch.randn(20, 20))
    for d in (0, 1):
        assert (matrix * matrix.grad).sum(d).abs().max() < 1e-5


@pytest.mark.parametrize(
    "pattern",
    [[[1, 1, 1], [0, 0, 1], [0, 0, 1]], [[1, 1, 0], [1, 1, 0], [0, 0, 0]], [[1, 1, 0], [0, 1, 1], [0, 0, 0]]],
    ids=["no matching", "empty row and column, balanced", "more columns than rows"],
)
def test_gives_up_only_where_there_is_no_limit(pattern):
    values, place = random_on(pattern)
    results = []
    for balance in (balanced_limit, balanced_normalize):
        free = values.clone().requires_grad_()
        balanced = balance(place(free))
        balanced.backward(torch.ones_like(balanced).tril())
        results.append(torch.cat([balanced.detach().flatten(), free.grad]))
    balanceable = pattern == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert torch.equal(*results) is not balanceable


def test_iterations_are_those_of_the_way_without_a_limit():
    matrix = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    assert torch.equal(balanced_limit(matrix, iterations=3), balanced_normalize(matrix, 3))


def test_all_empty_stays_empty_with_finite_gradients():
    matrix = torch.zeros(3, 3, requires_grad=True)
    balanced = balanced_limit(matrix)
    balanced.backward(torch.randn(3, 3))
    assert not balanced.any()
    assert matrix.grad.isfinite().all()


def test_backward_pass_keeps_one_matrix_however_long_the_search():
    n = 40
    i = torch.arange(n)
    matrix = (torch.rand(n, n) * ((i.unsqueeze(0) - i.unsqueeze(1)).abs() <= 1)).requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        balanced_limit(matrix)
    assert sorted(kept) == [n, n, n * n]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_autocast_are_computed_in_float32(dtype):
    torch.manual_seed(0)
    matrix = torch.rand(6, 6).to(dtype)
    expected = balanced_limit(matrix.float())
    assert torch.equal(balanced_limit(matrix), expected.to(dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(balanced_limit(matrix.float()), expected)


@pytest.mark.parametrize(
    ("matrix", "settings", "message"),
    [
        (torch.ones(2, 3), {}, r"square matrix.*\(2, 3\)"),
        (torch.ones(2, 2, 2), {}, r"square matrix.*\(2, 2, 2\)"),
        (torch.ones(0, 0), {}, r"at least one entry.*\(0, 0\)"),
        ([[1.0]], {}, "matrix must be a floating-point tensor, got list"),
        (torch.ones(2, 2), {"tolerance": 0.0}, "tolerance.*above 0, got 0.0"),
        (torch.ones(2, 2), {"steps": 0}, "steps.*at least 1, got 0"),
        (torch.ones(2, 2), {"iterations": -1}, "iterations.*at least 0, got -1"),
    ],
)
def test_wrong_arguments(matrix, settings, message):
    with pytest.raises(SparsityError, match=message):
        balanced_limit(matrix, **settings)
