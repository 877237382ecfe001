"""Edges of the thresholds: dropped groups, exact zeros, precision, compilation and wrong arguments."""

import math

import pytest
import torch

from diffsparse.errors import SparsityError
from diffsparse.functional import matrix_threshold, signed_threshold, simplex_threshold

VECTOR = [signed_threshold, simplex_threshold]


def both_betas(alpha, beta, rgf=None):
    return matrix_threshold(alpha, beta, beta, rgf=rgf)


def gradients(op, inputs, weight, **options):
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    value = op(*leaves, **options)
    value.backward(weight)
    return value.detach(), [x.grad for x in leaves]


@pytest.mark.parametrize("rgf", [None, 0.1])
def test_alpha_of_exactly_zero_stays_zero_without_gradient(rgf):
    alpha, beta = torch.tensor([0.0, 1.0, -0.5]), torch.tensor(-3.0)
    value, (grad, _) = gradients(signed_threshold, (alpha, beta), torch.tensor([5.0, 1.0, 1.0]), rgf=rgf)
    assert value[0] == 0
    assert grad[0] == 0
    assert (grad[1:] != 0).all()


@pytest.mark.parametrize("op", VECTOR)
@pytest.mark.parametrize("n", [2, 3, 10, 64])
def test_equal_entries_die_together_at_one_over_n(op, n):
    alpha = torch.full((n,), 0.7, dtype=torch.float64)
    death = -math.log(n - 1)
    assert (op(alpha, torch.tensor(death - 1e-3, dtype=torch.float64)) > 0).all()
    assert not op(alpha, torch.tensor(death + 1e-3, dtype=torch.float64)).any()


def test_signed_group_dies_when_the_fraction_reaches_its_largest_share():
    alpha = torch.tensor([1.0, -3.0, 2.0])
    logit = math.log(0.5 / 0.5)
    assert signed_threshold(alpha, torch.tensor(logit - 0.01)).nonzero().flatten().tolist() == [1]
    assert not signed_threshold(alpha, torch.tensor(logit + 0.01)).any()


@pytest.mark.parametrize("op", [*VECTOR, both_betas])
def test_all_dropped_group_is_zero_with_finite_gradients(op):
    inputs = (torch.tensor([[1.0, -0.5, 0.2], [2.0, 2.0, 2.0], [1.0, 3.0, 1.0]]), torch.full((3,), 3.0))
    weight = torch.arange(1.0, 10).reshape(3, 3)
    value, plain = gradients(op, inputs, weight)
    assert torch.equal(value.abs(), torch.zeros(3, 3))
    assert all(not grad.any() for grad in plain)
    value, rectified = gradients(op, inputs, weight, rgf=0.1)
    assert torch.equal(value.abs(), torch.zeros(3, 3))
    assert all(grad.isfinite().all() and grad.any() for grad in rectified)


@pytest.mark.parametrize("rgf", [None, 0.1])
@pytest.mark.parametrize("transpose", [False, True])
def test_matrix_with_an_empty_row_and_column_has_finite_gradients(rgf, transpose):
    alpha = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    high, low = torch.tensor([-3.0, -3.0, 4.0]), torch.full((3,), -4.0)
    row, col = (low, high) if transpose else (high, low)
    value, grads = gradients(matrix_threshold, (alpha, row, col), torch.rand(3, 3), rgf=rgf)
    empty = value[:, 2] if transpose else value[2]
    assert not empty.any()
    assert value[0, 0] > 0
    assert all(grad.isfinite().all() for grad in grads)


def test_group_of_one():
    alpha, beta = torch.tensor([[-2.0], [0.5]]), torch.tensor([0.0, 5.0])
    torch.testing.assert_close(signed_threshold(alpha, beta), alpha * (1 - beta.sigmoid()).unsqueeze(1))
    assert torch.equal(simplex_threshold(alpha, beta), torch.ones(2, 1))


def test_group_of_one_is_dropped_only_where_the_sigmoid_rounds_to_one():
    alpha = torch.ones(1)
    for op in VECTOR:
        assert op(alpha, torch.tensor(15.0)) > 0
        assert op(alpha, torch.tensor(20.0)) == 0


def test_simplex_does_not_overflow():
    a = simplex_threshold(torch.tensor([1000.0, 1000.0, -1000.0]), torch.tensor(-2.0))
    assert a.tolist() == [0.5, 0.5, 0.0]
    torch.testing.assert_close(
        simplex_threshold(torch.tensor([101.0, 100.0]), torch.tensor(-2.0)),
        simplex_threshold(torch.tensor([1.0, 0.0]), torch.tensor(-2.0)),
    )


@pytest.mark.parametrize("op", [*VECTOR, both_betas])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("beta_dtype", [None, torch.float32])
def test_half_precision_is_computed_in_float32(op, dtype, beta_dtype):
    torch.manual_seed(0)
    alpha, beta = torch.randn(32, 32).to(dtype), torch.full((32,), -5.3).to(beta_dtype or dtype)
    value = op(alpha, beta)
    assert value.dtype == dtype
    assert torch.equal(value, op(alpha.float(), beta.float()).to(dtype))


@pytest.mark.parametrize("op", [*VECTOR, both_betas])
@pytest.mark.parametrize("rgf", [None, 0.1])
def test_compiles_to_one_graph(op, rgf):
    torch.manual_seed(0)
    inputs, weight = (torch.randn(4, 4), torch.full((4,), -1.5)), torch.rand(4, 4)
    value, grads = gradients(op, inputs, weight, rgf=rgf)
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    compiled_value, compiled_grads = gradients(compiled, inputs, weight, rgf=rgf)
    assert 0 < (value == 0).sum() < 16
    torch.testing.assert_close(compiled_value, value)
    torch.testing.assert_close(compiled_grads, grads)


def test_compiles_with_a_gradient_flow_that_changes_between_calls():
    alpha, beta = torch.randn(4, 4), torch.full((4,), -1.5)
    compiled = torch.compile(signed_threshold, fullgraph=True, backend="aot_eager")
    for rgf in (0.1, 0.2, 0.3, None):
        torch.testing.assert_close(compiled(alpha, beta, rgf=rgf), signed_threshold(alpha, beta, rgf=rgf))


@pytest.mark.parametrize("op", VECTOR)
@pytest.mark.parametrize(
    ("alpha", "beta", "options", "message"),
    [
        (torch.ones(3, dtype=torch.int64), torch.tensor(0.0), {}, "alpha must be a floating-point.*int64"),
        (torch.ones(3, 0), torch.zeros(3), {}, r"at least one entry.*\(3, 0\)"),
        (torch.tensor(1.0), torch.tensor(0.0), {}, r"at least one dimension.*\(\)"),
        (torch.ones(2, 3), torch.zeros(3), {}, r"beta must.*\(2,\).*\(2, 3\).*got shape \(3,\)"),
        (torch.ones(2, 3), torch.zeros(2), {"dim": 0}, r"beta must.*got shape \(2,\)"),
        (torch.ones(3), torch.zeros(1), {}, r"beta must.*got shape \(1,\)"),
        (torch.ones(2, 3), torch.zeros(2), {"dim": 2}, "dim=2 is out of range"),
        (torch.ones(2, 3), torch.zeros(2), {"dim": -3}, "dim=-3 is out of range"),
        (torch.ones(2, 3), torch.zeros(2), {"dim": (1, -1)}, r"dim=\(1, -1\).*twice"),
        ([1.0, 2.0], torch.tensor(0.0), {}, "alpha must be a floating-point tensor, got list"),
        (torch.ones(3), -2.0, {}, "beta must be a floating-point tensor, got float"),
        (torch.ones(3), torch.tensor(0), {}, "beta must be a floating-point tensor, got torch.int64"),
        (torch.ones(2, 3), torch.zeros(2), {"dim": "0"}, "dim='0' is out of range"),
        (torch.ones(2, 3), torch.zeros(2), {"rgf": "0.1"}, "elu_alpha must be a finite number.*got '0.1'"),
        (torch.ones(2, 3), torch.zeros(2), {"rgf": True}, "elu_alpha must be a finite number.*got True"),
        (torch.ones(2, 3), torch.zeros(2), {"rgf": math.inf}, "elu_alpha must be a finite number.*got inf"),
        (torch.ones(2, 3), torch.zeros(2), {"rgf": -0.1}, "at least 0, got -0.1"),
    ],
)
def test_wrong_arguments(op, alpha, beta, options, message):
    with pytest.raises(SparsityError, match=message):
        op(alpha, beta, **options)


@pytest.mark.parametrize(
    ("alpha", "row", "col", "message"),
    [
        ([[1.0]], torch.zeros(1), torch.zeros(1), "alpha must be a floating-point tensor, got list"),
        (torch.ones(3), torch.zeros(3), torch.zeros(3), r"shape \(..., rows, columns\), got \(3,\)"),
        (torch.ones(2, 3), torch.zeros(3), torch.zeros(3), r"beta_row must.*\(2,\).*got shape \(3,\)"),
        (torch.ones(2, 3), torch.zeros(2), torch.zeros(2), r"beta_col must.*\(3,\).*got shape \(2,\)"),
        (torch.ones(2, 2, dtype=torch.int32), torch.zeros(2), torch.zeros(2), "int32"),
        (torch.ones(0, 2), torch.zeros(0), torch.zeros(2), r"at least one entry.*\(0, 2\)"),
    ],
)
def test_wrong_matrix_arguments(alpha, row, col, message):
    with pytest.raises(SparsityError, match=message):
        matrix_threshold(alpha, row, col)
