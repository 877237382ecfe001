"""Training goes on after compaction as if nothing had happened."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import diffsparse as ds
from diffsparse.compaction.materialise import materialise
from diffsparse.gates import Source
from diffsparse.models import PreResNet
from diffsparse.wiring import Proximal, WiredStage
from tests.compaction.gated import GatedNet

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
    plain = materialise(sparse_net())
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


GATED: dict[str, Callable[[], nn.Module]] = {
    "sum": lambda: ds.SparseSum(
        [nn.Linear(4, 4), nn.Linear(4, 4), nn.Identity()], ds.SignedGate.from_values([0.5, 0.0, 1.0])
    ),
    "batch norm in a sum": lambda: ds.SparseSum([ds.sparsify(small_net()[:2]), nn.Linear(4, 8)]),
    "gate": lambda: GatedNet(),
    "model with gates": lambda: ds.sparsify(small_net()),
}


def every_parameter_moves(model: nn.Module, optimizer: torch.optim.Optimizer, run: Callable[[], None]) -> None:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters()}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    run()
    assert not [name for name, p in model.named_parameters() if torch.equal(p, before[name])]


@pytest.mark.parametrize("make", GATED.values(), ids=GATED)
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_every_parameter_goes_on_training(kind: str, make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make()
    optimizer = OPTIMIZERS[kind](ds.parameter_groups(model))
    step(model, optimizer)
    small = ds.compact(model, torch.randn(2, 4))
    later = ds.slice_optimizer(optimizer, model, small)
    every_parameter_moves(small.model, later, lambda: step(small.model, later))


@pytest.mark.parametrize("edges", [None, Proximal(strength=0.1)])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_every_edge_of_a_stage_goes_on_training(kind: str, edges: Proximal | None) -> None:
    torch.manual_seed(0)
    stage = WiredStage(3, 4, groups=2, edges=edges)
    optimizer = OPTIMIZERS[kind](ds.parameter_groups(stage))

    def run(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.randn(2, 3, 6, 6)).square().sum().backward()
        optimizer.step()

    run(stage, optimizer)
    small = ds.compact(stage, torch.randn(2, 3, 6, 6))
    later = ds.slice_optimizer(optimizer, stage, small)
    gated = [group for group in later.param_groups if group["name"] == ("gates" if edges is None else "weights")]
    held = {id(p) for p in gated[0]["params"]}
    assert all(id(mix.weight) in held and mix.weight not in later.state for mix in small.model.mixes)
    every_parameter_moves(small.model, later, lambda: run(small.model, later))


def test_a_bias_that_folding_added_follows_what_its_weight_came_from() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm2d(3), WiredStage(3, 4), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    for parameter in net[2].parameters():
        parameter.data = torch.rand(4)
    optimizer = torch.optim.SGD(ds.parameter_groups(net), lr=0.1)
    small = ds.compact(net, torch.randn(2, 3, 6, 6), fold=True)
    assert small.model[1].mixes[0].bias is not None
    later = ds.slice_optimizer(optimizer, net, small)
    by_name = {group["name"]: group["params"] for group in later.param_groups}
    assert any(p is small.model[1].mixes[0].bias for p in by_name["gates"])


class Wrapped(nn.Module):
    """A linear layer that is computed; what its parameters come from is given."""

    def __init__(self, sources: dict[str, Source]) -> None:
        super().__init__()
        self.inner, self.sources = nn.Linear(4, 4), sources

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    def materialise(self) -> nn.Module:
        return self.inner

    def parameter_sources(self) -> dict[str, Source]:
        return self.sources


def test_a_source_may_keep_its_state() -> None:
    sources = {key: Source(f"inner.{key}", keeps_state=True) for key in ("weight", "bias")}
    model = nn.Sequential(Wrapped(sources), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step(model, optimizer)
    model[1].weight.data[:, 1:] = 0
    small = ds.compact(model, torch.randn(2, 4))
    later = ds.slice_optimizer(optimizer, model, small)
    momentum = optimizer.state[model[0].inner.weight]["momentum_buffer"]
    assert torch.equal(later.state[small.model[0].weight]["momentum_buffer"], momentum[:1])


@pytest.mark.parametrize("sources", [{}, {"weight": Source("inner.scale"), "bias": Source("inner.bias")}])
def test_a_parameter_without_a_source_is_an_error(sources: dict[str, Source]) -> None:
    model = nn.Sequential(Wrapped(sources), nn.Linear(4, 2))
    small = ds.compact(model, torch.randn(2, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ds.SparsityError, match=r"'0.weight' of the compact model comes from no parameter"):
        ds.slice_optimizer(optimizer, model, small)


def test_parameters_that_the_optimizer_never_held_are_left_out() -> None:
    model = ds.sparsify(small_net())
    model[1].gate.requires_grad_(False)
    optimizer = torch.optim.SGD(model[4].parameters(), lr=0.1)
    small = ds.compact(model, torch.randn(2, 4))
    later = ds.slice_optimizer(optimizer, model, small)
    assert [p.shape for group in later.param_groups for p in group["params"]] == [(2, 6), (2,)]


def test_an_optimizer_built_before_sparsify() -> None:
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = ds.sparsify(model)
    small = ds.compact(model, torch.randn(2, 4))
    with pytest.warns(ds.SparsityWarning, match=r"gate '1.gate' is in no parameter group.*built before sparsify"):
        ds.slice_optimizer(optimizer, model, small)
