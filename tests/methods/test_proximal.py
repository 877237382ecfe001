"""Proximal steps on batch norms against the operator written out by hand."""

import copy

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.methods import Proximal
from tests.methods.tiny import EXAMPLE, agree, net, spread, train

# each with a weaker and a stronger lambda
NORMS = {
    "l1": (ds.L1(), (0.3, 0.4)),
    "l21": (ds.GroupL21(size=3), (0.5, 0.7)),
    "l12": (ds.ExclusiveL12(), (0.06, 0.09)),
}


def norms_of(model: nn.Module) -> list[nn.BatchNorm2d]:
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]


def set_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_each_step_against_the_formula() -> None:
    hooked = spread(net())
    by_hand = copy.deepcopy(hooked)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (hooked, by_hand)]
    Proximal(strength=2.0).regulariser(hooked, optimizers[0])
    for step in range(4):
        for model, optimizer in zip((hooked, by_hand), optimizers, strict=True):
            set_gradients(model, step)
            optimizer.step()
        for norm in norms_of(by_hand):
            for i in range(norm.num_features):
                scale = norm.weight.data[i].item()
                norm.weight.data[i] = max(abs(scale) - 0.1 * 2.0, 0.0) * (1 if scale > 0 else -1)
                if norm.weight.data[i] == 0:
                    norm.bias.data[i] = 0
    assert 0 < Proximal(strength=1.0).zeros(hooked).zero < 60
    for mine, expected in zip(hooked.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("name", NORMS)
def test_training_makes_exact_zeros_that_compaction_removes_the_more_the_stronger(name: str) -> None:
    norm, strengths = NORMS[name]
    counts = []
    for strength in strengths:
        method = Proximal(strength=strength, norm=norm)
        model = train(method.prepare(net()), method)
        counts.append(method.zeros(model).zero)
        for layer in norms_of(model):
            assert not layer.bias[layer.weight == 0].any()
        small = method.compacted(model, net(), EXAMPLE)
        assert small.after.macs < small.before.macs
        assert agree(model, small.model)
    assert 0 < counts[0] < counts[1] < 60


def test_groups_die_together_and_the_last_may_be_smaller() -> None:
    method = Proximal(strength=1.0, norm=ds.GroupL21(size=3))
    model = spread(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.2)
    method.regulariser(model, optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = [norm.weight.detach().clone() for norm in norms_of(model)]
    optimizer.step()
    died = []
    for norm, scales in zip(norms_of(model), before, strict=True):
        for start in range(0, norm.num_features, 3):
            dead = bool(scales[start : start + 3].norm() <= 1.2)
            assert torch.equal(norm.weight[start : start + 3] == 0, torch.full((len(scales[start : start + 3]),), dead))
            died.append(dead)
    assert 0 < sum(died) < len(died)


def test_strength_is_set_during_training_and_the_loss_gets_no_term() -> None:
    model = spread(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    regulariser = Proximal(strength=100.0).regulariser(model, optimizer)
    assert regulariser() is None
    regulariser.strength = 0.0
    set_gradients(model, 0)
    optimizer.step()
    assert Proximal(strength=0.0).zeros(model).zero == 0
    regulariser.strength = 100.0
    optimizer.step()
    assert Proximal(strength=0.0).zeros(model).fraction == 1


def test_remove_leaves_the_optimiser_as_it_was() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Proximal(strength=100.0).regulariser(model, optimizer).remove()
    model.bn.weight.data[0] = 0
    set_gradients(model, 0)
    model.bn.weight.grad[0] = 0
    optimizer.step()
    assert Proximal(strength=0.0).zeros(model).zero == 1
    assert model.bn.bias[0] != 0


def test_frozen_shifts_are_left_alone() -> None:
    model = spread(net())
    model.bn.bias.requires_grad_(False)
    before = model.bn.bias.clone()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    Proximal(strength=100.0).regulariser(model, optimizer)
    set_gradients(model, 0)
    optimizer.step()
    assert not model.bn.weight.any()
    assert torch.equal(model.bn.bias, before)


def test_refuses_mistakes() -> None:
    with pytest.raises(ds.SparsityError, match="strength must be"):
        Proximal(strength=-0.1)
    bare = nn.Linear(2, 2)
    with pytest.raises(ds.SparsityError, match="a proximal step acts on scales of batch norms, and Linear has"):
        Proximal(strength=0.1).regulariser(bare, torch.optim.SGD(bare.parameters(), lr=0.1))
    model = net()
    with pytest.raises(ds.SparsityError, match="no closed-form proximal"):
        Proximal(strength=0.1, norm=ds.Lp(0.5)).regulariser(model, torch.optim.SGD(model.parameters(), lr=0.1))
