"""Newton's method for the factors: against closed forms, dense solvers and patterns without a solution."""

import pytest
import torch

from diffsparse.functional import _newton
from diffsparse.functional._newton import find_scaling, solve_sums

F64 = torch.float64


def dense_solution(scaled, row_side, column_side):
    """Least squares of least norm with the full matrix of 2n unknowns."""
    system = torch.cat([torch.cat([scaled.sum(1).diag(), scaled], 1), torch.cat([scaled.mT, scaled.sum(0).diag()], 1)])
    solved = torch.linalg.pinv(system, hermitian=True, rtol=1e-12) @ torch.cat([row_side, column_side])
    return solved[: len(scaled)], solved[len(scaled) :]


def two_blocks():
    torch.manual_seed(3)
    return torch.block_diag(torch.rand(3, 3, dtype=F64), torch.rand(2, 2, dtype=F64))


def with_empty_row_and_column():
    matrix = two_blocks()
    matrix[1] = 0
    matrix[:, 4] = 0
    return matrix


@pytest.mark.parametrize("make", [lambda: torch.rand(6, 6, dtype=F64), two_blocks, with_empty_row_and_column])
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
    monkeypatch.setattr(_newton, "solve_sums", lambda *args: solved.append(1) or solve_sums(*args))
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
