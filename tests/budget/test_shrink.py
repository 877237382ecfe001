"""The user's objects stay the same objects, and what they compute stays the same."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.budget.shrink import shrink_in_place, unwrapped_optimizer
from tests.budget.examples import NETWORKS, gated

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "adam": lambda groups: torch.optim.Adam(groups, lr=1e-2),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-2),
}


def with_zeros(name: str) -> tuple[nn.Module, torch.Tensor]:
    model, x = gated(name)
    for index, (_, gate) in enumerate(ds.gates.named_gates(model)):
        alive = torch.rand(1, gate.alpha.numel(), generator=torch.Generator().manual_seed(index)) > 0.4
        alive[0, 0] = True
        gate.set_alive(alive)
    return model, x


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_same_objects_train_on_as_a_compact_copy_would(name: str, kind: str) -> None:
    model, x = with_zeros(name)
    optimizer = OPTIMIZERS[kind](ds.parameter_groups(model))
    step(model, optimizer, x)
    small = ds.compact(model, x[:2])
    new = ds.slice_optimizer(optimizer, model, small)
    expected = copy.deepcopy(small.model)
    pairs = zip(new.param_groups, _twins(new, small, expected), strict=True)
    twin = OPTIMIZERS[kind]([{**group, "params": parameters} for group, parameters in pairs])
    for old, other in zip(_all(new), _all(twin), strict=True):
        twin.state[other] = copy.deepcopy(new.state[old])
    kept = model.training
    shrink_in_place(model, small, [optimizer])
    assert model.training == kept
    assert {id(p) for p in _all(optimizer)} == {id(p) for p in model.parameters()}
    for _ in range(3):
        step(model, optimizer, x)
        step(expected, twin, x)
    for (key, a), b in zip(model.state_dict().items(), expected.state_dict().values(), strict=True):
        assert torch.equal(a, b), key


def _all(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _twins(optimizer: torch.optim.Optimizer, small: Any, other: nn.Module) -> list[list[nn.Parameter]]:
    names = {id(p): name for name, p in small.model.named_parameters()}
    found = dict(other.named_parameters())
    return [[found[names[id(p)]] for p in group["params"]] for group in optimizer.param_groups]


def test_modules_keep_their_identity_and_their_hooks() -> None:
    model, x = with_zeros("pre-activation")
    seen: list[int] = []
    conv = model.stages[0][0].conv2
    conv.register_forward_hook(lambda _module, _args, output: seen.append(output.shape[1]))
    before = {name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Sequential)}
    small = ds.compact(model.eval(), x[:2])
    seen.clear()
    shrink_in_place(model, small)
    after = dict(model.named_modules())
    assert all(after[name] is module for name, module in before.items() if name in after)
    expected = small.model(x)
    seen.clear()
    assert torch.equal(model(x), expected)
    assert len(seen) == 1


def test_a_backward_pass_begun_before_the_shrink_ends_without_harm() -> None:
    model, x = with_zeros("chain")
    loss = model(x).sum()
    shrink_in_place(model, ds.compact(model, x[:2]))
    loss.backward()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_schedulers_and_scalers_go_on() -> None:
    model, x = with_zeros("chain")
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    step(model, optimizer, x)
    scheduler.step()
    groups = [id(group) for group in optimizer.param_groups]
    shrink_in_place(model, ds.compact(model, x[:2]), [optimizer])
    assert [id(group) for group in optimizer.param_groups] == groups
    for _ in range(8):
        step(model, optimizer, x)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] < 1e-2


def test_a_group_that_loses_its_parameters_stays_empty() -> None:
    model, x = gated("pre-activation")
    block = model.stages[0][0]
    block.bn2.gate.set_alive(torch.zeros(1, 4, dtype=torch.bool))
    own = list(block.conv1.parameters())
    rest = [p for p in model.parameters() if all(p is not q for q in own)]
    optimizer = torch.optim.SGD([{"params": own, "lr": 0.5}, {"params": rest}], lr=0.1)
    shrink_in_place(model, ds.compact(model, x[:2]), [optimizer])
    assert [len(group["params"]) > 0 for group in optimizer.param_groups] == [False, True]
    assert optimizer.param_groups[0]["lr"] == 0.5
    step(model, optimizer, x)


def test_an_optimiser_inside_a_wrapper_is_found() -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    inner = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    assert unwrapped_optimizer(Wrapper(Wrapper(inner))) is inner


def test_parameters_of_others_stay_in_the_optimiser_with_their_state() -> None:
    model, x = with_zeros("chain")
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([{"params": [*model.parameters(), weight], "lr": 0.1}], lr=0.1)
    optimizer.zero_grad()
    (model(x).square().mean() * weight).sum().backward()
    optimizer.step()
    state = optimizer.state[weight]
    new = ds.slice_optimizer(optimizer, model, small := ds.compact(model, x[:2]))
    assert any(parameter is weight for parameter in _all(new))
    shrink_in_place(model, small, [optimizer])
    assert optimizer.state[weight] is state
    assert {id(p) for p in _all(optimizer)} == {id(weight), *(id(p) for p in model.parameters())}


def test_what_the_user_keeps_in_a_module_stays_the_same_object() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.seen, self.width, self.sizes = NETWORKS["chain"][0](), list[object](), 32, (8, 32)
            self.notes = {"a": self.seen}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    torch.manual_seed(0)
    model = ds.sparsify(Net(), start=0.5)
    seen, notes = model.seen, model.notes
    calls: list[int] = []
    handle = model.layers[1].register_forward_hook(lambda *_: calls.append(1))
    model.layers[1].gate.set_alive(torch.arange(32)[None] < 8)
    shrink_in_place(model, ds.compact(model, torch.randn(2, 8)))
    assert model.layers[0].out_features == 8
    assert model.seen is seen
    assert model.notes is notes
    calls.clear()
    model(torch.randn(4, 8))
    assert calls == [1]
    handle.remove()
    model(torch.randn(4, 8))
    assert calls == [1]


class Listed(nn.Module):
    """Runs its layers from a plain list and by a function."""

    def __init__(self) -> None:
        super().__init__()
        block = [nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)]
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(*block), nn.Conv2d(4, 2, 1))
        self.head = nn.Conv2d(4, 2, 1)
        self.listed: list[Any] = []

    def enlist(self) -> None:
        """Fill the list with the modules of now."""
        self.listed = [*self.layers[:2], lambda x: x + self.layers[2](x), {"head": self.head}]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, norm, block, last = self.listed
        return last["head"](block(norm(first(x)))) + 0 * self.layers[3](x[:, :1].expand(-1, 4, -1, -1)).mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize("whole", [False, True])
def test_what_plain_lists_and_functions_hold_becomes_small_too(whole: bool) -> None:
    model: Any = ds.sparsify(Listed()).eval()
    model.enlist()
    model.layers[1].gate.set_alive(torch.tensor([[True, False, True, False]]))
    if whole:
        model.layers[2][1].gate.set_alive(torch.zeros(1, 4, dtype=torch.bool))
    x = torch.randn(2, 3, 8, 8)
    expected = model(x)
    held = model.listed[:2]
    shrink_in_place(model, ds.compact(model, x))
    assert all(module is listed for module, listed in zip(model.layers, held, strict=False))
    assert type(held[1]) is nn.BatchNorm2d
    assert held[0].out_channels == 2
    assert torch.allclose(model(x), expected, atol=1e-5)


class Extractor(nn.Module):
    """Returns what a hook has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.seen = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), dict[str, torch.Tensor]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.net(x)
        return self.seen["y"].mean((2, 3))


def test_a_hook_that_the_output_comes_from_sees_all_channels() -> None:
    model: Any = ds.sparsify(Extractor()).eval()
    model.net[1].register_forward_hook(lambda module, args, output: model.seen.update(y=output))
    model.net[1].gate.set_alive(torch.tensor([[True] * 4 + [False] * 4]))
    x = torch.randn(2, 3, 8, 8)
    expected = model(x)
    shrink_in_place(model, ds.compact(model, x))
    assert model.net[0].out_channels == 4
    assert torch.allclose(model(x), expected, atol=1e-5)
