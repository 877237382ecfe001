"""The matrix gate: its start, and a start at any given values."""

import math

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from diffsparse.errors import SparsityError
from diffsparse.gates import MatrixGate

reproducible = settings(deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
entries = st.one_of(st.just(0.0), st.floats(-12, 3).map(lambda e: 10.0**e))


@st.composite
def matrices(draw):
    rows, columns = draw(st.sampled_from([(1, 2), (3, 1), (2, 2), (2, 4), (5, 3), (4, 4)]))
    flat = draw(st.lists(entries, min_size=rows * columns, max_size=rows * columns).filter(any))
    return torch.tensor(flat).reshape(rows, columns)


def assert_same_start(gate, wanted):
    got = gate().detach()
    assert torch.equal(got > 0, wanted > 0)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=2e-6 * wanted.max().item())


@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (2, 1), (2, 2), (3, 5), (64, 64)])
def test_starts_uniform_and_alive(rows, columns):
    gate = MatrixGate(rows, columns)
    expected = 1 - 1 / (columns + 1) - 1 / (rows + 1)
    assert (gate() - expected).abs().max() < 1e-5
    assert expected > 0
    assert gate.beta_row.shape == (rows,)
    assert gate.beta_col.shape == (columns,)


def test_is_square_unless_told():
    assert MatrixGate(3)().shape == (3, 3)


def test_value_is_the_formula():
    torch.manual_seed(0)
    gate = MatrixGate(2, 3, dtype=torch.float64)
    for parameter, mean in ((gate.alpha, 0.0), (gate.beta_row, -2.0), (gate.beta_col, -2.0)):
        parameter.detach().normal_().add_(mean)
    gamma = [[math.exp(x) for x in line] for line in gate.alpha.tolist()]
    row, col = ([1 / (1 + math.exp(-b)) for b in beta.tolist()] for beta in (gate.beta_row, gate.beta_col))
    for i in range(2):
        for j in range(3):
            distance = gamma[i][j] - row[i] * sum(gamma[i]) - col[j] * (gamma[0][j] + gamma[1][j])
            assert gate()[i, j].item() == pytest.approx(max(distance, 0.0))


def test_groups_are_rows_and_columns():
    values = torch.arange(6.0).reshape(2, 3)
    rows, columns = MatrixGate(2, 3).groups(values)
    assert rows.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert columns.tolist() == [[0, 3], [1, 4], [2, 5]]


@reproducible
@given(matrices())
@example(torch.eye(3))
@example(torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
@example(torch.tensor([[1.0, 1e-12], [0.0, 1e-20]]))
@example(torch.tensor([[0.0, 1e-30]]))
def test_from_values_round_trip(wanted):
    assert_same_start(MatrixGate.from_values(wanted), wanted)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("n", [3, 17, 64])
def test_from_values_keeps_tiny_values(n, scale):
    torch.manual_seed(n)
    wanted = torch.rand(n, n + 2) * 10 ** torch.empty(n, n + 2).uniform_(-12, 1)
    wanted[torch.rand(n, n + 2) < 0.3] = 0
    assert_same_start(MatrixGate.from_values(scale * wanted), scale * wanted)


def test_from_values_keeps_tiny_values_whose_alpha_is_about_zero():
    """There a relative step of alpha would not move exp(alpha)."""
    torch.manual_seed(0)
    for _ in range(60):
        wanted = torch.rand(2, 2)
        wanted[0, 1] = 1e-20
        wanted /= MatrixGate.from_values(wanted).alpha.detach()[0, 1].exp()
        gate = MatrixGate.from_values(wanted)
        assert gate.alpha[0, 1].abs() < 1e-6
        assert_same_start(gate, wanted)


def test_from_values_keeps_the_paper_betas_and_is_exact_in_float64():
    wanted = torch.tensor([[0.5, 0.0, 0.1], [0.0, 0.25, 0.0]], dtype=torch.float64)
    gate = MatrixGate.from_values(wanted, rgf=0.1)
    assert gate.rgf == 0.1
    assert gate.beta_row.tolist() == pytest.approx([-math.log(11)] * 2)
    assert gate.beta_col.tolist() == pytest.approx([-math.log(5)] * 3)
    torch.testing.assert_close(gate().detach(), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rgf", [None, 0.1])
def test_empty_row_and_column_have_finite_gradients(rgf):
    gate = MatrixGate.from_values([[0.0, 0.0, 0.0], [0.0, 1.0, 0.5], [0.0, 0.5, 1.0]], rgf=rgf)
    value = gate()
    value.backward(torch.rand(3, 3))
    assert not value[0].any()
    assert not value[:, 0].any()
    assert all(p.grad.isfinite().all() for p in gate.parameters())
    assert bool(gate.alpha.grad[0].any()) is True


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MatrixGate(1), "at least two entries to compete, got 1 x 1"),
        (lambda: MatrixGate(0, 4), "got 0 x 4"),
        (lambda: MatrixGate(4, 0), "got 4 x 0"),
        (lambda: MatrixGate(-2, -2), "rows must be a whole number of at least 0, got -2"),
        (lambda: MatrixGate(2.5), "rows must be a whole number of at least 0, got 2.5"),
        (lambda: MatrixGate(2, "3"), "columns must be a whole number of at least 0, got '3'"),
        (lambda: MatrixGate.from_values([[3.4e38, 3.4e38]]), "too large for torch.float32"),
        (lambda: MatrixGate(2, rgf=-0.1), "rgf must.*got -0.1"),
        (lambda: MatrixGate.from_values([[1.0]]), "got 1 x 1"),
        (lambda: MatrixGate.from_values(torch.zeros(0, 3)), "got 0 x 3"),
        (lambda: MatrixGate.from_values([1.0, 2.0]), r"shape \(rows, columns\), got \(2,\)"),
        (lambda: MatrixGate.from_values([[1.0, -0.5]]), "must not be negative.*from -0.5 to 1"),
        (lambda: MatrixGate.from_values([[0.0, 0.0]]), "at least one must be positive.*from 0 to 0"),
        (lambda: MatrixGate.from_values([[1.0, math.nan]]), "finite numbers, got nan"),
    ],
)
def test_wrong_arguments(build, message):
    with pytest.raises(SparsityError, match=message):
        build()
