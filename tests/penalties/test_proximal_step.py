"""The proximal hook against the operator applied by hand after each step."""

import copy
import math

import pytest
import torch
from torch import nn

from diffsparse import L1, ExclusiveL12, GroupL21, Lp, ProximalStep, SparsityError

OPTIMISERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.1),
}


def weights():
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(4, 6, dtype=torch.float64)) for _ in range(3)]


def groups_of(parameters):
    slow, fast, free = parameters
    return [{"params": [slow, free], "lr": 0.01}, {"params": [fast], "lr": 0.2}]


def set_gradients(parameters, seed):
    torch.manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)


@pytest.mark.parametrize("make", OPTIMISERS.values(), ids=OPTIMISERS)
@pytest.mark.parametrize("norm", [L1(), ExclusiveL12(), GroupL21(size=4)], ids=repr)
def test_applied_after_each_step_with_the_rate_of_its_group(make, norm):
    hooked = weights()
    by_hand = copy.deepcopy(hooked)
    optimizers = [make(groups_of(parameters)) for parameters in (hooked, by_hand)]
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5) for optimizer in optimizers]
    ProximalStep(optimizers[0], hooked[:2], norm, strength=0.3)
    for step in range(5):
        for parameters, optimizer, scheduler in zip((hooked, by_hand), optimizers, schedulers, strict=True):
            set_gradients(parameters, step)
            optimizer.step()
            if parameters is by_hand:
                for parameter, rate in zip(by_hand[:2], (0.01, 0.2), strict=True):
                    parameter.data = norm.proximal(parameter.data, rate * 0.5 ** (step // 2) * 0.3)
            scheduler.step()
    for mine, expected in zip(hooked, by_hand, strict=True):
        torch.testing.assert_close(mine, expected)


def test_makes_exact_zeros_that_plain_descent_does_not():
    (w, *_) = weights()
    plain = w.detach().clone()
    optimizer = torch.optim.SGD([w], lr=0.1)
    ProximalStep(optimizer, iter([w]), L1(), strength=1.0)
    w.grad = torch.zeros_like(w)
    for _ in range(5):
        optimizer.step()
    small = plain.abs() < 0.5
    assert small.any()
    assert torch.equal(w == 0, small)
    assert w.requires_grad


def test_remove_stops_it():
    (w, *_) = weights()
    optimizer = torch.optim.SGD([w], lr=0.1)
    hook = ProximalStep(optimizer, [w], L1(), strength=1.0)
    hook.remove()
    before = w.detach().clone()
    w.grad = torch.zeros_like(w)
    optimizer.step()
    assert torch.equal(w, before)


def test_a_parameter_given_twice_shrinks_once():
    w = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([w], lr=0.1)
    ProximalStep(optimizer, [w, w], L1(), strength=1.0)
    w.grad = torch.zeros_like(w)
    optimizer.step()
    torch.testing.assert_close(w.detach(), torch.full((2,), 0.9))


def test_frozen_parameters_are_left_alone():
    frozen, free, _ = weights()
    before = frozen.detach().clone()
    optimizer = torch.optim.SGD([frozen, free], lr=0.1)
    ProximalStep(optimizer, [frozen, free], L1(), strength=1.0)
    frozen.requires_grad_(False)
    free.grad = torch.zeros_like(free)
    optimizer.step()
    assert torch.equal(frozen, before)
    frozen.requires_grad_()
    optimizer.step()
    assert not torch.equal(frozen, before)


@pytest.mark.parametrize("norm", [GroupL21(2), ExclusiveL12()], ids=repr)
def test_refuses_a_single_number(norm):
    number = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(SparsityError, match=r"single number|at least one dimension"):
        ProximalStep(torch.optim.SGD([number], lr=0.1), [number], norm, 0.1)


def test_refuses_mistakes():
    inside, outside, _ = weights()
    optimizer = torch.optim.SGD([inside], lr=0.1)
    with pytest.raises(SparsityError, match=r"parameter 1 of shape \(4, 6\) is not in the optimiser"):
        ProximalStep(optimizer, [inside, outside], L1(), 0.1)
    with pytest.raises(SparsityError, match="no closed-form proximal"):
        ProximalStep(optimizer, [inside], Lp(0.5), 0.1)
    with pytest.raises(SparsityError, match=r"norm must be L1.*'l1'"):
        ProximalStep(optimizer, [inside], "l1", 0.1)
    with pytest.raises(SparsityError, match="no parameters"):
        ProximalStep(optimizer, [], L1(), 0.1)
    for strength in (-1.0, math.nan, math.inf, "x", True):
        with pytest.raises(SparsityError, match="strength must be a finite number"):
            ProximalStep(optimizer, [inside], L1(), strength)
    before = inside.detach().clone()
    inside.grad = torch.zeros_like(inside)
    optimizer.step()
    assert torch.equal(inside, before)
