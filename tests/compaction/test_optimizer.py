"""Training goes on after compaction as if nothing had happened."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import diffsparse as ds
from diffsparse.compaction.materialise import bake
from diffsparse.models import PreResNet

STEPS = 20


def batches(count: int, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(8, 3, 8, 8, generator=generator, dtype=torch.float64),
            torch.randint(5, (8,), generator=generator),
        )
        for _ in range(count)
    ]


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Any, after: Callable[[], None] = lambda: None
) -> list[float]:
    losses = []
    model.train()
    for images, labels in data:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after()
        losses.append(loss.item())
    return losses


def sparse_net() -> nn.Module:
    """A gated net some of whose channels and one of whose blocks are dead."""
    torch.manual_seed(0)
    model = PreResNet(14, num_classes=5, width=6).double()
    dead = model.stages[1][1].bn2
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            gone = torch.rand(module.num_features) < (1.1 if module is dead else 0.4)
            module.weight.data[gone] = 0
            module.bias.data[gone] = 0
    return ds.sparsify(model)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_same_losses_as_the_gated_model_with_its_gates_frozen(kind: str) -> None:
    gated = sparse_net()
    for module in gated.modules():
        if isinstance(module, ds.SparseBatchNorm2d):
            module.requires_grad_(False)
    optimizer = OPTIMIZERS[kind]([p for p in gated.parameters() if p.requires_grad])
    train(gated, optimizer, batches(5, seed=1))
    small = ds.compact(gated, batches(1, seed=2)[0][0])
    for module in small.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.requires_grad_(False)
    later = ds.slice_optimizer(optimizer, gated, small)
    assert len(later.state) == sum(p.requires_grad for p in small.model.parameters())
    data = batches(STEPS, seed=3)
    expected, got = train(gated, optimizer, data), train(small.model, later, data)
    assert torch.allclose(torch.tensor(expected), torch.tensor(got), rtol=1e-6)
    assert expected[0] != expected[-1]


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_same_losses_as_ordinary_batch_norms_with_their_zeros_frozen(kind: str) -> None:
    plain = bake(sparse_net())
    zeros = {p: p == 0 for m in plain.modules() if isinstance(m, nn.BatchNorm2d) for p in (m.weight, m.bias)}
    # a shift is frozen where its scale is zero
    for module in plain.modules():
        if isinstance(module, nn.BatchNorm2d):
            zeros[module.bias] = zeros[module.weight]

    def freeze() -> None:
        for parameter, zero in zeros.items():
            parameter.data[zero] = 0

    optimizer = OPTIMIZERS[kind](plain.parameters())
    train(plain, optimizer, batches(5, seed=1), freeze)
    small = ds.compact(plain, batches(1, seed=2)[0][0])
    later = ds.slice_optimizer(optimizer, plain, small)
    data = batches(STEPS, seed=3)
    expected, got = train(plain, optimizer, data, freeze), train(small.model, later, data)
    assert torch.allclose(torch.tensor(expected), torch.tensor(got), rtol=1e-6)


def test_groups_options_and_fresh_scales() -> None:
    gated = sparse_net()
    optimizer = torch.optim.SGD(ds.parameter_groups(gated, 1e-3, 1e-5), lr=0.1, momentum=0.9)
    train(gated, optimizer, batches(2, seed=1))
    small = ds.compact(gated, batches(1, seed=2)[0][0])
    later = ds.slice_optimizer(optimizer, gated, small)
    scales = {m.weight for m in small.model.modules() if isinstance(m, nn.BatchNorm2d)}
    by_name = {group["name"]: group for group in later.param_groups}
    assert set(by_name["gates"]["params"]) == scales
    assert (by_name["weights"]["weight_decay"], by_name["gates"]["weight_decay"]) == (1e-3, 1e-5)
    assert not any(scale in later.state for scale in scales)
    assert later.state[small.model.stem.weight]["momentum_buffer"].shape == small.model.stem.weight.shape
    train(small.model, later, batches(2, seed=4))


def test_a_foreign_optimizer_is_named() -> None:
    gated = sparse_net()
    small = ds.compact(gated, batches(1, seed=2)[0][0])
    foreign = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(ds.SparsityError, match="holds no parameter"):
        ds.slice_optimizer(foreign, gated, small)


def small_net() -> nn.Sequential:
    """Half of the first layer is dead; the last one has lost columns, the one behind it nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6), nn.Linear(6, 2))
    for parameter in model[1].parameters():
        parameter.data[:4] = 0
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(5, 4)).square().sum().backward()
    optimizer.step()


def test_state_that_cannot_be_sliced_starts_fresh() -> None:
    model = small_net()
    optimizer = torch.optim.Adafactor([*model[0].parameters(), *model[3].parameters(), *model[4].parameters()])
    step(model, optimizer)
    small = ds.compact(model, torch.randn(2, 4))
    with pytest.warns(ds.SparsityWarning) as caught:
        later = ds.slice_optimizer(optimizer, model, small)
    named = [str(warning.message).split()[0] for warning in caught]
    assert named == ["'0.weight'", "'3.weight'"]
    assert small.model[0].weight not in later.state
    # a bias has one entry for each number, and the last layer was not sliced
    assert later.state[small.model[0].bias]["variance"].shape == (4,)
    expected = optimizer.state[model[4].weight]["row_var"]
    assert torch.equal(later.state[small.model[4].weight]["row_var"], expected)
    assert later.state[small.model[4].weight]["row_var"] is not expected
    step(small.model, later)


def test_names_of_parameters_are_those_of_the_compact_model() -> None:
    gated = ds.sparsify(small_net())
    optimizer = torch.optim.Adam(gated.named_parameters(), lr=0.1)
    step(gated, optimizer)
    small = ds.compact(gated, torch.randn(2, 4))
    later = ds.slice_optimizer(optimizer, gated, small)
    (group,) = later.param_groups
    parameters = dict(small.model.named_parameters())
    assert set(group["param_names"]) == set(parameters)
    assert all(parameters[name] is p for name, p in zip(group["param_names"], group["params"], strict=True))
    step(small.model, later)


def test_a_wrapped_model() -> None:
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step(model, optimizer)
    small = ds.compact(model, torch.randn(2, 4))
    later = ds.slice_optimizer(optimizer, nn.DataParallel(model), small)
    assert len(later.state) == len(list(small.model.parameters()))


def test_a_model_that_is_one_batch_norm() -> None:
    gated = ds.SparseBatchNorm1d(4)
    optimizer = torch.optim.SGD(gated.parameters(), lr=0.1)
    small = ds.compact(gated, torch.randn(3, 4))
    later = ds.slice_optimizer(optimizer, gated, small)
    assert any(p is small.model.weight for group in later.param_groups for p in group["params"])


def test_lbfgs_is_refused() -> None:
    model = small_net()
    small = ds.compact(model, torch.randn(2, 4))
    with pytest.raises(ds.SparsityError, match="LBFGS keeps one history"):
        ds.slice_optimizer(torch.optim.LBFGS(model.parameters()), model, small)


def test_arguments_of_wrong_kinds() -> None:
    model = small_net()
    small, optimizer = ds.compact(model, torch.randn(2, 4)), torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ds.SparsityError, match=r"optimizer must be a torch.optim.Optimizer, got None"):
        ds.slice_optimizer(None, model, small)  # type: ignore[type-var]
    with pytest.raises(ds.SparsityError, match=r"model must be a torch.nn.Module, got 3"):
        ds.slice_optimizer(optimizer, 3, small)  # type: ignore[arg-type]
    with pytest.raises(ds.SparsityError, match="small must be what compact returned"):
        ds.slice_optimizer(optimizer, model, small.model)  # type: ignore[arg-type]
