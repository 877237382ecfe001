"""Rectified gradient flow (Eq. 15), and shrinking of magnitudes (Eq. 12) in value and gradient."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from diffsparse.errors import SparsityError
from diffsparse.functional import rectified_relu
from diffsparse.functional.threshold import gated_relu, shrink

POINTS = [-30.0, -2.0, -0.5, -1e-6, 0.0, 1e-6, 0.5, 3.0]


def leaf(values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def slope(x, elu_alpha):
    return 1.0 if x > 0 else elu_alpha * math.exp(x)


@pytest.mark.parametrize("elu_alpha", [0.0, 0.1, 1.0])
def test_value_is_relu_and_gradient_is_that_of_elu(elu_alpha):
    x = leaf(POINTS)
    y = rectified_relu(x, elu_alpha)
    assert y.tolist() == [max(p, 0.0) for p in POINTS]
    y.backward(torch.arange(1.0, len(POINTS) + 1, dtype=torch.float64))
    assert x.grad.tolist() == pytest.approx([(k + 1) * slope(p, elu_alpha) for k, p in enumerate(POINTS)])


def test_factor_at_exactly_zero_is_elu_alpha():
    x = leaf([0.0, -0.0])
    rectified_relu(x).sum().backward()
    assert x.grad.tolist() == [0.1, 0.1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_zeros_are_exact_in_every_dtype(dtype):
    x = -torch.logspace(-6, 2, 1000).to(dtype)
    y = rectified_relu(x)
    assert y.dtype == dtype
    assert not y.any()


def test_gradcheck_where_positive():
    assert gradcheck(rectified_relu, leaf([0.3, 1.0, 4.0]))


def test_second_derivative_is_that_of_elu():
    x = leaf([-3.0, -0.5, 0.5, 2.0])
    assert gradgradcheck(rectified_relu, x)
    (first,) = torch.autograd.grad(rectified_relu(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == pytest.approx([0.1 * math.exp(-3.0), 0.1 * math.exp(-0.5), 0.0, 0.0])


def test_inside_func_transforms():
    x = torch.tensor(POINTS, dtype=torch.float64)
    slopes = torch.func.vmap(torch.func.grad(rectified_relu))(x)
    assert slopes.tolist() == pytest.approx([slope(p, 0.1) for p in POINTS])


def test_infinite_and_missing_values():
    x = leaf([-math.inf, math.inf, math.nan])
    y = rectified_relu(x)
    y[:2].sum().backward()
    assert y[:2].tolist() == [0.0, math.inf]
    assert y[2].isnan()
    assert x.grad[:2].tolist() == [0.0, 1.0]


def test_compiles_to_one_graph():
    x, y = leaf(POINTS), leaf(POINTS)
    compiled = torch.compile(rectified_relu, fullgraph=True, backend="aot_eager")
    value = compiled(y)
    value.sum().backward()
    rectified_relu(x).sum().backward()
    assert value.tolist() == [max(p, 0.0) for p in POINTS]
    assert torch.equal(y.grad, x.grad)


def test_gated_relu_is_plain_relu_without_flow():
    x = leaf([-1.0, 0.0, 2.0])
    gated_relu(x, None).sum().backward()
    assert x.grad.tolist() == [0.0, 0.0, 1.0]
    x = leaf([-1.0, 0.0, 2.0])
    gated_relu(x, 0.5).sum().backward()
    assert x.grad.tolist() == pytest.approx([0.5 * math.exp(-1), 0.5, 1.0])


@pytest.mark.parametrize("wrong", [-0.1, math.nan])
def test_wrong_elu_alpha(wrong):
    with pytest.raises(SparsityError, match=f"elu_alpha.*got {wrong}"):
        rectified_relu(torch.ones(2), wrong)


SHRUNK = [-2.0, -0.75, -0.5, -0.1, 0.0, 0.1, 0.5, 0.75, 2.0]


def two_case(x, t):
    if x > t:
        return x - t
    return x + t if x < -t else 0.0


def test_agrees_with_the_two_case_form():
    x = torch.tensor(SHRUNK, dtype=torch.float64)
    assert shrink(x, 0.5).tolist() == [two_case(p, 0.5) for p in SHRUNK]
    thresholds = torch.linspace(0, 1, len(SHRUNK), dtype=torch.float64)
    expected = [two_case(p, t) for p, t in zip(SHRUNK, thresholds.tolist(), strict=True)]
    assert shrink(x, thresholds).tolist() == pytest.approx(expected)
    assert torch.equal(shrink(x, thresholds, 0.1), shrink(x, thresholds))


def test_gradcheck_in_value_and_threshold():
    x = torch.tensor([-2.0, -0.75, -0.1, 0.1, 0.75], dtype=torch.float64, requires_grad=True)
    threshold = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    assert gradcheck(shrink, (x, threshold))


def test_flow_reaches_the_threshold():
    x = torch.tensor([-0.1, 0.2], dtype=torch.float64, requires_grad=True)
    threshold = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    shrink(x, threshold, 0.1).sum().backward()
    flow = 0.1 * torch.tensor([-0.4, -0.3], dtype=torch.float64).exp()
    torch.testing.assert_close(x.grad, flow)
    torch.testing.assert_close(threshold.grad, flow[0] - flow[1])
