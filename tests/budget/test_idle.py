"""Gates in front of a depthwise convolution with a norm of its own have no effect by themselves, and are left alone."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import diffsparse as ds
from tests.budget.examples import Separable, train

STEPS = 100


def started(steps: int) -> tuple[Any, ds.Budget, torch.optim.Optimizer, torch.Tensor]:
    """A budget after so many steps, in a network of which a norm takes out the scale of each channel of `bn1`."""
    torch.manual_seed(0)
    model, x = ds.sparsify(Separable(), start=1.0), torch.randn(16, 3, 6, 6)
    budget = ds.Budget(model, x, macs=0.5, steps=STEPS, due=1.0)
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.05)
    train(model, x, budget, optimizer, steps)
    return model, budget, optimizer, x


def test_nothing_presses_on_them() -> None:
    model, budget, _, _ = started(11)
    budget._pressure.steer(missing=0.5, passed=0.01)
    pressed = torch.autograd.grad(budget.penalty(), [model.bn1.gate.beta, model.bn2.gate.beta])
    assert pressed[0].item() == 0
    assert pressed[1].item() < 0


def test_they_stay_where_they_are_while_others_close() -> None:
    model, budget, _, _ = started(0)
    first = model.bn1.gate.beta.item(), model.bn2.gate.beta.item()
    model, budget, _, _ = started(90)
    assert budget.history[-1].macs < 0.7
    assert model.bn1.gate.beta.item() == pytest.approx(first[0], abs=0.1)
    assert model.bn2.gate.beta.item() > first[1] + 0.5


@pytest.mark.parametrize("stop", [11, 47])
def test_a_resumed_run_spares_the_same(stop: int) -> None:
    model, budget, optimizer, x = started(stop)
    state = budget.state_dict()
    again = ds.Budget(model, x, macs=0.5, steps=STEPS, due=1.0)
    again.load_state_dict(state, optimizer)
    assert again._steering.spared.tolist() == budget._steering.spared.tolist() == [True, False]


def test_they_close_where_nothing_else_is_left_to_close() -> None:
    model, _, optimizer, x = started(0)
    only = ds.Budget(model, x, macs=0.3, steps=20, only="bn1")
    for _ in range(20):
        loss = F.cross_entropy(model(x), torch.arange(16) % 3) + only.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        only.step(optimizer)
    assert 0.2 < only.cost["macs"] <= 0.3
    assert np.isfinite(model(x).detach().numpy()).all()
