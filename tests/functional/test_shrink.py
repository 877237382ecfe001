"""Shrinking magnitudes: the two-case form of Eq. 12 in value and gradient."""

import pytest
import torch
from torch.autograd import gradcheck

from diffsparse.functional.shrink import shrink

POINTS = [-2.0, -0.75, -0.5, -0.1, 0.0, 0.1, 0.5, 0.75, 2.0]


def two_case(x, t):
    if x > t:
        return x - t
    return x + t if x < -t else 0.0


def test_agrees_with_the_two_case_form():
    x = torch.tensor(POINTS, dtype=torch.float64)
    assert shrink(x, 0.5).tolist() == [two_case(p, 0.5) for p in POINTS]
    thresholds = torch.linspace(0, 1, len(POINTS), dtype=torch.float64)
    expected = [two_case(p, t) for p, t in zip(POINTS, thresholds.tolist(), strict=True)]
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
