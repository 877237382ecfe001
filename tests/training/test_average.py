import copy

import pytest
import torch
from torch import nn

from diffsparse import sparsify
from diffsparse.training.average import MovingAverage
from tests.training.examples import Net


def changed(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator))
            else:
                tensor.fill_(step)


def test_follows_the_slow_formula() -> None:
    model = sparsify(Net(), start=0.5)
    average = MovingAverage(model, decay=0.3)
    expected = {name: tensor.double() for name, tensor in copy.deepcopy(model.state_dict()).items()}
    for step in range(6):
        changed(model, step)
        average.update(model)
        # 1/10, 2/11, 3/12, and from the fourth on the decay itself
        decay = [1 / 10, 2 / 11, 3 / 12, 0.3, 0.3, 0.3][step]
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                expected[name] = decay * expected[name] + (1 - decay) * tensor.double()
    for name, tensor in average.model.state_dict().items():
        if tensor.is_floating_point():
            assert torch.allclose(tensor.double(), expected[name], atol=1e-6), name
        else:
            assert tensor == 5
    assert "bn1.gate.alpha" in expected


def test_is_a_network_of_its_own_that_can_go_on_training() -> None:
    model = Net()
    model.head.bias.requires_grad_(False)
    average = MovingAverage(model, decay=0.9)
    before = copy.deepcopy(model.state_dict())
    changed(average.model, 0)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert average.model.head.weight.requires_grad
    assert not average.model.head.bias.requires_grad
    average.update(model)
    assert all(parameter.grad is None for parameter in average.model.parameters())


def test_a_model_of_another_shape_is_refused() -> None:
    with pytest.raises(RuntimeError):
        MovingAverage(Net(), 0.9).update(Net(width=3))
