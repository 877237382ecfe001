"""The limit of balancing: closed forms, its gradient against differences and against unrolled iterations."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from diffsparse.errors import SparsityError
from diffsparse.functional import balance as balancing
from diffsparse.functional import balanced_limit, balanced_normalize
from diffsparse.functional.balance import find_scaling, solve_sums

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


def dense_solution(scaled, row_side, column_side):
    """Least squares of least norm with the full matrix of 2n unknowns."""
    system = torch.cat([torch.cat([scaled.sum(1).diag(), scaled], 1), torch.cat([scaled.mT, scaled.sum(0).diag()], 1)])
    solved = torch.linalg.pinv(system, hermitian=True, rtol=1e-12) @ torch.cat([row_side, column_side])
    return solved[: len(scaled)], solved[len(scaled) :]


def two_random_blocks():
    torch.manual_seed(3)
    return torch.block_diag(torch.rand(3, 3, dtype=F64), torch.rand(2, 2, dtype=F64))


def with_empty_row_and_column():
    matrix = two_random_blocks()
    matrix[1] = 0
    matrix[:, 4] = 0
    return matrix


@pytest.mark.parametrize("make", [lambda: torch.rand(6, 6, dtype=F64), two_random_blocks, with_empty_row_and_column])
def test_solution_agrees_with_a_dense_solver_on_the_non_zeros(make):
    torch.manual_seed(0)
    scaled = make()
    weighted = torch.randn(len(scaled), len(scaled), dtype=F64) * scaled
    x, y = solve_sums(scaled, weighted.sum(1), weighted.sum(0), 1e-13)
    u, v = dense_solution(scaled, weighted.sum(1), weighted.sum(0))
    pairs, expected = x.unsqueeze(1) + y, u.unsqueeze(1) + v
    torch.testing.assert_close(pairs[scaled > 0], expected[scaled > 0])
    assert not x[scaled.sum(1) == 0].any()
    assert not y[scaled.sum(0) == 0].any()


def test_accuracy_is_that_of_the_right_side():
    """A gradient that is all but constant leaves next to nothing to iterate on, and no noise is amplified."""
    scaled = torch.rand(40, 40)
    weighted = (1000 + 1e-4 * torch.randn(40, 40)) * scaled
    x, y = solve_sums(scaled, weighted.sum(1), weighted.sum(0), torch.finfo(torch.float32).eps ** 0.75)
    torch.testing.assert_close(x.unsqueeze(1) + y, torch.full((40, 40), 1000.0), rtol=1e-4, atol=0)


def test_nothing_to_solve():
    for scaled in (torch.zeros(2, 2), torch.rand(2, 2)):
        x, y = solve_sums(scaled, torch.zeros(2), torch.zeros(2), 1e-6)
        assert not x.any()
        assert not y.any()


@pytest.mark.parametrize("spread", [1.0, 4.0])
@pytest.mark.parametrize("n", [1, 2, 30])
def test_factors_balance(n, spread):
    torch.manual_seed(n)
    matrix = (spread * torch.randn(n, n, dtype=F64)).exp()
    rows, columns = find_scaling(matrix, 1e-10, 30)
    scaled = rows.unsqueeze(1) * matrix * columns
    for d in (0, 1):
        torch.testing.assert_close(scaled.sum(d), torch.ones(n, dtype=F64), rtol=0, atol=1e-10)


def test_slow_patterns_take_few_steps():
    """On a long two-way road plain iteration is hundreds of times from such a tolerance."""
    n = 60
    i = torch.arange(n)
    road = (i.unsqueeze(0) - i.unsqueeze(1)).abs() <= 1
    torch.manual_seed(0)
    assert find_scaling(torch.rand(n, n, dtype=F64).add(0.1) * road, 1e-9, 12) is not None


@pytest.mark.parametrize(
    "pattern",
    [
        [[1, 1, 0], [0, 0, 1], [0, 0, 1]],
        [[1, 1, 1], [1, 0, 0], [1, 0, 0]],
        [[1, 1], [0, 0]],
    ],
    ids=["two rows with one column", "two rows and columns share one", "empty row"],
)
def test_no_factors_without_a_perfect_matching(pattern):
    assert find_scaling(torch.tensor(pattern, dtype=F64), 1e-3, 50) is None


@pytest.mark.parametrize(("pattern", "most"), [([[1, 1], [0, 0]], 0), ([[1, 1, 1], [1, 0, 0], [1, 0, 0]], 10)])
def test_gives_up_soon(monkeypatch, pattern, most):
    solved = []
    monkeypatch.setattr(balancing, "solve_sums", lambda *args: solved.append(1) or solve_sums(*args))
    assert find_scaling(torch.tensor(pattern, dtype=F64), 1e-3, 1000) is None
    assert len(solved) <= most


def test_entries_without_support_vanish_up_to_the_tolerance():
    matrix = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=F64)
    rows, columns = find_scaling(matrix, 1e-4, 30)
    scaled = rows.unsqueeze(1) * matrix * columns
    assert 0 < scaled[0, 1] < 2e-4
    assert find_scaling(matrix, 1e-4, 2) is None


def test_all_empty_is_balanced():
    rows, columns = find_scaling(torch.zeros(3, 3), 1e-6, 5)
    assert rows.tolist() == columns.tolist() == [1, 1, 1]
