"""What users keep beside the modules: cached activations, lists, closures; every entry point takes such models."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from tests.budget.examples import train


class Caching(nn.Module):
    """Keeps activations of its last run, with their history, as many models do for a loss on features."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 24), nn.BatchNorm1d(24), nn.Linear(24, 3)
        self.feat: Tensor | None = None
        self.all: dict[str, list[Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.feat = self.norm(self.first(x))
        self.all = {"features": [self.feat, x]}
        return self.last(F.relu(self.feat))


def run_once(model: nn.Module) -> Tensor:
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    model.train()(x)
    assert model.feat.requires_grad
    return x


def test_models_that_cache_activations_are_taken_everywhere() -> None:
    torch.manual_seed(0)
    model: Any = Caching()
    x = run_once(model)
    ds.sparsify(model, x)
    run_once(model)
    average = ds.MovingAverage(model, 0.5)
    budget = ds.Budget(model, x[:2], macs=0.5, steps=12, due=0.5, shrinks=2)
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.05, momentum=0.9)
    for step in range(12):
        loss = F.cross_entropy(model(x), torch.arange(16) % 3) + 0.01 * model.feat.square().mean() + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        if budget.step(optimizer):
            average.follow(budget.small)
        assert (step >= 5) == budget.finished
    assert model.feat.shape[1] == model.first.out_features < 24
    run_once(average.model)
    small = ds.compact(model, x[:2])
    assert small.max_difference is not None
    ds.gathered(model)
    ds.measure(model, x[:2], latency=False)
    ds.slice_optimizer(optimizer, model, small)


class Scaled:
    """A callable of the user's own around a layer."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Tensor:
        return 2 * self.layer(x)

    def run(self, x: Tensor) -> Tensor:
        return 2 * self.layer(x)


def call_with(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)  # type: ignore[no-any-return]


class Holding(nn.Module):
    """Runs its layers through something that is filled after the gates are in."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 24), nn.BatchNorm1d(24), nn.Linear(24, 3)
        self.steps: Any = None

    def hold(self, how: Callable[[list[nn.Module]], Any]) -> None:
        self.steps = how([self.first, self.norm, self.last])

    def forward(self, x: Tensor) -> Tensor:
        steps = self.steps.values() if isinstance(self.steps, dict) else self.steps
        for number, step in enumerate(steps):
            x = F.relu(step(x)) if number == 1 else step(x)
        return x


def closure(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: layer(x)


HOLDERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "dict": lambda layers: {str(n): layer for n, layer in enumerate(layers)},
    "lambdas": lambda layers: [lambda x, layer=layer: layer(x) for layer in layers],
    "closures": lambda layers: [closure(layer) for layer in layers],
    "partial": lambda layers: [partial(call_with, layer) for layer in layers],
    "bound methods": lambda layers: [layer.forward for layer in layers],
    "bound calls": lambda layers: [layer.__call__ for layer in layers],
    "objects": lambda layers: [Scaled(layer) for layer in layers],
    "methods of objects": lambda layers: [Scaled(layer).run for layer in layers],
}


@pytest.mark.parametrize("shrinks", [1, 2])
@pytest.mark.parametrize("how", HOLDERS)
def test_what_holds_modules_goes_on_with_the_small_ones(how: str, shrinks: int) -> None:
    torch.manual_seed(0)
    model: Any = ds.sparsify(Holding(), start=0.5)
    model.hold(HOLDERS[how])
    outside = HOLDERS[how]([model.first, model.norm, model.last])
    x = torch.randn(16, 8)
    budget = ds.Budget(model, x[:2], macs=0.5, steps=9, due=0.5, shrinks=shrinks)
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.05, momentum=0.9)
    train(model, x, budget, optimizer, 8)
    assert budget.finished
    assert model.first.out_features == model.norm.num_features == model.last.in_features < 24
    inside = model.eval()(x)
    model.steps = outside
    # what the user holds outside of the model runs the same layers
    assert torch.equal(model(x), inside)
    before = model.first.weight.detach().clone()
    train(model.train(), x, budget, optimizer, 1)
    assert not torch.equal(model.first.weight, before)
