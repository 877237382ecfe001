"""Weights in front of batch norms are halved, where that changes next to nothing of what a network computes."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

import diffsparse as ds
from diffsparse.budget.free_weights import halve_free_weights
from diffsparse.example import Example


class Chain(nn.Module):
    """A layer, what is between, and a norm."""

    def __init__(self, layer: nn.Module | None = None, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 6, 3) if layer is None else layer
        self.norm = nn.BatchNorm2d(6) if norm is None else norm

    def forward(self, x: Tensor) -> Any:
        return self.norm(self.layer(x))


class Forked(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.second = nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return self.norm(y) - F.relu(self.second(y))  # type: ignore[no-any-return]


class Added(Chain):
    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return self.norm(y) + y  # type: ignore[no-any-return]


class AddedInTraining(Chain):
    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return self.norm(y) + (y if self.training else 0.0)  # type: ignore[no-any-return]


class Twice(Chain):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)) + self.layer(x)  # type: ignore[no-any-return]


CAN: dict[str, Callable[[], nn.Module]] = {
    "convolution with a bias": Chain,
    "without": lambda: Chain(nn.Conv2d(3, 6, 3, bias=False)),
    "transposed": lambda: Chain(nn.ConvTranspose2d(3, 6, 2)),
    "without scale": lambda: Chain(norm=nn.BatchNorm2d(6, affine=False)),
    "two norms": Forked,
}
CANNOT: dict[str, Callable[[], nn.Module]] = {
    "read elsewhere": Added,
    "read elsewhere in training": AddedInTraining,
    "called twice": Twice,
    "other norm": lambda: Chain(norm=nn.GroupNorm(2, 6)),
    "no statistics": lambda: Chain(norm=nn.BatchNorm2d(6, track_running_stats=False)),
}


def trained(make: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model, x = make(), torch.randn(8, 3, 6, 6)
    for _ in range(30):
        model(x)
    return model, x


@pytest.mark.parametrize("name", CAN)
def test_the_same_with_smaller_weights(name: str) -> None:
    model, x = trained(CAN[name])
    before = copy.deepcopy(model)
    factors = halve_free_weights(model, Example.of(x[:2]))
    assert factors["layer.weight"] == factors["norm.running_mean"] == 0.5
    assert factors["norm.running_var"] == 0.25
    for training in (False, True):
        torch.testing.assert_close(model.train(training)(x), before.train(training)(x), rtol=1e-3, atol=1e-3)
    after = model.state_dict()
    for key, old in before.state_dict().items():
        if old.is_floating_point() and "running" not in key:
            assert torch.equal(after[key], old * factors.get(key, 1.0))


@pytest.mark.parametrize("name", CANNOT)
def test_left_alone_where_something_would_change(name: str) -> None:
    model, x = trained(CANNOT[name])
    before = copy.deepcopy(model.state_dict())
    assert not halve_free_weights(model, Example.of(x[:2]))
    assert all(torch.equal(now, before[key]) for key, now in model.state_dict().items())


@pytest.mark.parametrize("make", [lambda p: optim.SGD(p, 0.05, momentum=0.9), lambda p: optim.AdamW(p, 0.01)])
def test_a_budget_halves_the_weights_of_a_chain_and_the_average_follows(make: Callable[[Any], optim.Optimizer]) -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in ((3, 12), (12, 16), (16, 16)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    model = ds.sparsify(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3)), start=1.0)
    x, y = torch.randn(32, 3, 8, 8), torch.arange(32) % 3
    budget = ds.Budget(model, x[:2], macs=0.5, steps=40)
    average, optimizer = ds.MovingAverage(model, decay=0.5), make(ds.parameter_groups(model))
    shrank = False
    for _ in range(40):
        loss = F.cross_entropy(model(x), y) + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        before_it = copy.deepcopy(model)
        if budget.step(optimizer):
            shrank = True
            small = budget.small
            assert small.multiplied["0.weight"] == small.multiplied["3.weight"] == 0.5
            assert small.multiplied["1.running_var"] == 0.25
            average.follow(small)
            assert average.model[3].weight.shape == model[3].weight.shape
            apart = (average.model.eval()(x) - model.eval()(x)).abs().max()
            assert apart < 0.3 * before_it.eval()(x).abs().max()
            model.train()
    assert shrank
