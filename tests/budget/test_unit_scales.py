"""Scales of batch norms become about one without changing what the network computes, and optimisers follow."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

import diffsparse as ds
from diffsparse.budget.rescale import multiply_states
from diffsparse.budget.unit_scales import MOST, to_unit_scales
from diffsparse.example import Example
from tests.budget.examples import train


class Net(nn.Module):
    """A batch norm, `between`, and a layer."""

    def __init__(self, between: Callable[[Tensor], Any] = F.relu, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.layer = nn.Conv2d(6, 4, 3, padding=1) if layer is None else layer
        self.between = between

    def forward(self, x: Tensor) -> Any:
        return self.layer(self.between(self.norm(self.first(x))))


class Residual(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.first(x)))
        return self.layer(y).sum(1, keepdim=True) + y


class Returned(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.relu(self.norm(self.first(x)))
        return self.layer(y), y


class Twice(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.first(x)))
        return self.layer(y) + self.layer(x.repeat(1, 2, 1, 1))


class Reads(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.first(x)))
        return self.layer(y) if y.mean() < 0.5 else -self.layer(y)


class Penalised(Net):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        return y + self.norm.weight.sum()


class Supervised(Net):
    """With a second head, which only training has."""

    def forward(self, x: Tensor) -> Any:
        y = F.relu(self.norm(self.first(x)))
        return (self.layer(y), self.again(y)) if self.training else self.layer(y)

    def again(self, y: Tensor) -> Tensor:
        return y.mean((1, 2, 3))


class NeedsMore(Net):
    """Training fails with the two inputs of the example."""

    def forward(self, x: Tensor) -> Any:
        if self.training and len(x) < 3:
            raise ValueError("too few")
        return super().forward(x)


class LeavesOutTheNorm(Net):
    def forward(self, x: Tensor) -> Any:
        return self.layer(x.repeat(1, 2, 1, 1)) if self.training else super().forward(x)


class LeavesOutBoth(Net):
    def forward(self, x: Tensor) -> Any:
        return x if self.training else super().forward(x)


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Hidden(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.first(x)))
        return self.layer(y) + _Square.apply(y).sum()  # type: ignore[no-untyped-call,no-any-return]


class Forked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, padding=1, groups=1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.leaky_relu(self.norm(x), 0.2)
        return self.a(y) + self.b(F.max_pool2d(y, 3, 1, 1))


def hooked() -> Net:
    """Somebody keeps what the norm gives."""
    net = Net()
    kept: list[Tensor] = []
    net.norm.register_forward_hook(lambda module, given, made: kept.append(made))
    return net


CAN: dict[str, Callable[[], nn.Module]] = {
    "relu": Net,
    "in place": lambda: Net(nn.ReLU(inplace=True)),
    "leaky": lambda: Net(nn.LeakyReLU(0.1)),
    "nothing between": lambda: Net(nn.Identity()),
    "pooled": lambda: Net(nn.Sequential(nn.ReLU(), nn.Dropout(0.0), nn.MaxPool2d(2), nn.AvgPool2d(2))),
    "transposed": lambda: Net(layer=nn.ConvTranspose2d(6, 4, 2)),
    "depthwise": lambda: Net(layer=nn.Conv2d(6, 6, 3, groups=6)),
    "linear": lambda: Net(nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(6, 3)),
    "mean": lambda: Net(lambda y: F.relu(y).mean((2, 3)), nn.Linear(6, 3)),
    "forked": Forked,
    "neither in training": LeavesOutBoth,
}
CANNOT: dict[str, Callable[[], nn.Module]] = {
    "relu6": lambda: Net(nn.ReLU6()),
    "gelu": lambda: Net(nn.GELU()),
    "number added": lambda: Net(lambda y: F.relu(y) + 0.1),
    "padded": lambda: Net(lambda y: F.pad(y, (1, 1, 1, 1), value=1.0)),
    "residual": Residual,
    "returned": Returned,
    "layer twice": Twice,
    "reads data": Reads,
    "scale read": Penalised,
    "not a layer": lambda: Net(layer=nn.BatchNorm2d(6)),
    "own function": Hidden,
    "read in training": Supervised,
    "no training on the example": NeedsMore,
    "layer alone in training": LeavesOutTheNorm,
    "hooked": hooked,
}


def scaled(make: Callable[[], nn.Module], size: float = 0.3) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model, x = make(), torch.randn(4, 3, 8, 8)
    model(x)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5 * size, 1.5 * size)
            nn.init.normal_(module.bias)
    return model, x


def unit_scales(model: nn.Module, x: Tensor) -> dict[str, float]:
    return to_unit_scales(model, Example.of(x[:2]), ["norm"])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", CAN)
def test_the_same_to_the_last_bit_with_larger_scales(name: str, training: bool) -> None:
    model, x = scaled(CAN[name])
    model.train(training)
    before = copy.deepcopy(model)
    factors = unit_scales(model, x)
    assert factors["norm.weight"] == factors["norm.bias"] == 4
    assert 0.7 < model.norm.weight.abs().mean() < 1.5  # type: ignore[operator]
    assert {module.training for module in model.modules()} == {training}
    for other in (x, torch.randn(3, 3, 12, 12)) if name not in {"linear"} else (x,):
        assert torch.equal(model(other), before(other))
    for key, old in before.named_parameters():
        assert torch.equal(dict(model.named_parameters())[key], old * factors.get(key, 1.0))


@pytest.mark.parametrize("name", CANNOT)
def test_left_alone_where_something_else_would_change(name: str) -> None:
    model, x = scaled(CANNOT[name])
    before = copy.deepcopy(model.state_dict())
    assert not unit_scales(model.eval(), x)
    assert all(torch.equal(now, before[key]) for key, now in model.state_dict().items())


def test_what_is_not_small_stays_and_what_is_almost_dead_grows_by_no_more_than_the_most() -> None:
    assert not unit_scales(*scaled(Net, size=1.2))
    assert not unit_scales(*scaled(Net, size=3.0))
    assert not unit_scales(*scaled(Net, size=0.0))
    assert unit_scales(*scaled(Net, size=0.01))["norm.weight"] == MOST


def test_weights_that_would_lose_bits_stay() -> None:
    model, x = scaled(Net)
    model.layer.weight.data.fill_(1e-45)  # type: ignore[union-attr,operator]
    assert not unit_scales(model, x)


def test_shared_weights_stay() -> None:
    model, x = scaled(lambda: Net(layer=nn.Conv2d(6, 6, 1)))
    model.again = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 1))
    model.again[1].weight = model.layer.weight  # type: ignore[union-attr]
    model.forward = lambda y: Net.forward(model, y) + model.again(y)  # type: ignore[method-assign,arg-type,operator]
    assert not unit_scales(model, x)


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: optim.Adam(p, lr=0.01, amsgrad=True, eps=0.0),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True, eps=0.0),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.01, eps=0.0),
    "adamax": lambda p: optim.Adamax(p, lr=0.01, eps=0.0),
    "rprop": lambda p: optim.Rprop(p, lr=0.01),
    "adadelta": lambda p: optim.Adadelta(p, lr=0.01, eps=0.0),
    "asgd": lambda p: optim.ASGD(p, lr=0.01),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_states_are_those_of_a_parameter_that_was_always_larger(kind: str) -> None:
    # a loss of w * factor has gradients that are as much smaller, step by step, if steps are of size zero
    factor, inputs = 4.0, [torch.randn(5, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    models = [nn.Linear(5, 1, bias=False, dtype=torch.float64) for _ in range(2)]
    states: list[Any] = []
    for model, scale in zip(models, (1.0, factor), strict=True):
        nn.init.constant_(model.weight, scale)
        optimizer = OPTIMIZERS[kind](model.parameters())
        optimizer.param_groups[0]["lr"] = 0.0
        for x in inputs:
            optimizer.zero_grad()
            (model.weight / scale * x).sum().backward()
            optimizer.step()
            nn.init.constant_(model.weight, scale)
        states.append(optimizer)
    multiply_states(states[:1], models[0], {"weight": factor})
    first, second = (each.state[model.weight] for each, model in zip(states, models, strict=True))
    compared = [key for key in first if key not in {"step", "eta", "mu", "step_size"}]
    assert compared
    for key in compared:
        assert torch.allclose(first[key], second[key], rtol=1e-12), key


def test_a_budget_ends_with_scales_of_about_one_and_the_same_outputs() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU()]
    model = ds.sparsify(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3)), start=0.3)
    x = torch.randn(32, 3, 8, 8)
    budget = ds.Budget(model, x[:2], macs=0.5, steps=4, due=0.25)
    average = ds.MovingAverage(model, decay=0.5)
    optimizer = optim.SGD(ds.parameter_groups(model), lr=0.01, momentum=0.9)
    for _ in range(4):
        loss = F.cross_entropy(model(x), torch.arange(32) % 3) + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        if budget.step(optimizer):
            assert set(budget.small.multiplied.values()) == {4.0, 0.25}
            assert 0.6 < model[1].weight.abs().mean() < 1.6
            average.follow(budget.small)
            # what has died since the last update is gone from the average, too
            assert average.model[1].weight.shape == model[1].weight.shape
            assert 0.6 < average.model[1].weight.abs().mean() < 1.6
            apart = (average.model.eval()(x) - model.eval()(x)).abs().max()
            assert apart < 0.2 * model(x).abs().max()
            model.train()
    assert budget.cost["macs"] <= 0.5


class Slow(optim.SGD):
    """Keeps a copy of each parameter, as lookahead does."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("slow", parameter.detach().clone())
        return super().step(closure)


def test_nothing_is_multiplied_if_an_optimiser_keeps_what_nobody_knows() -> None:
    torch.manual_seed(0)
    net = ds.sparsify(nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)), start=0.3)
    x, budgets = torch.randn(16, 6), dict[str, ds.Budget]()
    for kind in (optim.SGD, Slow):
        model = copy.deepcopy(net)
        budget = budgets[kind.__name__] = ds.Budget(model, x[:2], macs=0.5, steps=4)
        optimizer = kind(ds.parameter_groups(model), lr=0.01)
        train(model, x, budget, optimizer, 4)
    assert budgets["SGD"].small.multiplied
    assert not budgets["Slow"].small.multiplied
