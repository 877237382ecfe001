"""Numbers that go with a plan, written where it left room."""

import pytest
import torch
from torch import nn

from diffsparse.compaction.adaptors import FILL, Constant, ConstantMap
from diffsparse.compaction.apply import PlanTensors, write_plan_tensors


def model() -> nn.Sequential:
    layer = nn.Linear(2, 2)
    layer.register_buffer(FILL, torch.zeros(3))
    return nn.Sequential(layer, Constant(2, -1), ConstantMap([2], [None]))


def test_a_bias_is_added_to() -> None:
    net = model()
    before = net[0].bias.detach().clone()
    write_plan_tensors(net, PlanTensors(bias={"0": torch.tensor([1.0, -2.0], dtype=torch.float64)}))
    assert torch.allclose(net[0].bias.detach(), before + torch.tensor([1.0, -2.0]))
    assert net[0].bias.requires_grad


def test_scale_and_shift_are_taken_over_before_the_shift() -> None:
    net = model()
    x = torch.randn(4, 2)
    expected = net[0](x) * torch.tensor([2.0, 3.0]) + torch.tensor([5.0, 7.0])
    write_plan_tensors(net, PlanTensors(affine={"0": (torch.tensor([2.0, 3.0]), torch.tensor([5.0, 7.0]))}))
    assert torch.allclose(net[0](x), expected, atol=1e-6)


def test_folded_inputs_are_scaled_with_the_rest() -> None:
    net = model()
    x = torch.zeros(1, 2)
    expected = (net[0](x) + 1) * 2
    affine = (torch.full((2,), 2.0), torch.zeros(2))
    write_plan_tensors(net, PlanTensors(bias={"0": torch.ones(2).double()}, affine={"0": affine}))
    assert torch.allclose(net[0](x), expected, atol=1e-6)


def test_fills_and_constants() -> None:
    net = model()
    numbers = PlanTensors(
        fill={"0": torch.tensor([1.0, 2.0, 3.0])},
        constant={"1": torch.tensor([4.0, 5.0]), "2": torch.tensor([[6.0, 7.0]])},
    )
    write_plan_tensors(net, numbers)
    assert net[0].get_buffer(FILL).tolist() == [1, 2, 3]
    assert net[1](torch.zeros(1, 9)).tolist() == [[4, 5]]
    assert net[2](torch.zeros(1, 9)).tolist() == [[6, 7]]


def test_sums_are_made_in_double_precision() -> None:
    net = nn.Sequential(nn.Linear(1, 1).bfloat16())
    net[0].bias.data.fill_(-1.0)
    # in half precision the constant itself would be rounded first
    write_plan_tensors(net, PlanTensors(bias={"0": torch.tensor([1.001], dtype=torch.float64)}))
    assert net[0].bias.item() == pytest.approx(1e-3, rel=1e-2)
