"""The compact model is compared with the user's own model, which nothing is left in."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.testing import zero_channels
from tests.compaction.nets import randomise, same

X = torch.randn(2, 3, 8, 8, dtype=torch.float64)
OTHER = torch.randn(3, 3, 11, 9, dtype=torch.float64)


class Extractor(nn.Module):
    """Returns what a hook has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.seen = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), dict[str, Tensor]()
        self.net[1].register_forward_hook(lambda module, args, output: self.seen.update(y=output))

    def forward(self, x: Tensor) -> Tensor:
        self.net(x)
        return self.seen["y"].mean((2, 3))


class InputExtractor(Extractor):
    """Returns what a hook has seen of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(8, 4, 1)
        self.head.register_forward_hook(lambda module, args, output: self.seen.update(x=args[0], z=output))

    def forward(self, x: Tensor) -> Tensor:
        self.head(self.net(x))
        return torch.cat([self.seen["x"], self.seen["z"]], 1)


class Lambda(nn.Module):
    """Its head is a function."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)
        self.head: Callable[[Tensor], Tensor] = lambda x: self.b(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.a(x)))


class Partial(Lambda):
    def __init__(self) -> None:
        super().__init__()
        self.head = functools.partial(F.conv2d, weight=self.b.weight, bias=self.b.bias)


class Listed(Lambda):
    """Its layers are also in a plain list, next to functions."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Any] = [self.a, {"norm": (self.norm,)}, lambda x: self.b(x)]

    def forward(self, x: Tensor) -> Tensor:
        return self.steps[2](self.steps[1]["norm"][0](self.steps[0](x)))  # type: ignore[no-any-return]


def with_dead(make: Callable[[], nn.Module]) -> nn.Module:
    model = randomise(make())
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            zero_channels(norm, [0, 2, 3])
    return model


@pytest.mark.parametrize("make", [Extractor, InputExtractor, Lambda, Partial, Listed])
@pytest.mark.parametrize("ran_before", [False, True])
def test_code_that_reaches_layers_is_followed_compacted_and_saved(
    make: Callable[[], nn.Module], ran_before: bool, tmp_path: Path
) -> None:
    model = with_dead(make)
    if ran_before:
        model(X)
    small = ds.compact(model, X)
    first: Any = next(module for module in small.model.modules() if isinstance(module, nn.Conv2d))
    assert first.out_channels == 5
    assert same(model, small.model, OTHER)
    ds.save(small, tmp_path / "net.safetensors")
    assert same(model, ds.load(tmp_path / "net.safetensors", make().double().eval()), OTHER)


def test_a_plain_file_of_a_model_with_a_lambda(tmp_path: Path) -> None:
    model = with_dead(Lambda)
    ds.save(model, tmp_path / "net.safetensors")
    assert same(model, ds.load(tmp_path / "net.safetensors", Lambda().eval()), OTHER)


REGISTRY: dict[str, Any] = {}


class Registered(Lambda):
    """A global dictionary holds its last layer."""

    def __init__(self) -> None:
        super().__init__()
        REGISTRY["b"] = self.b
        self.head = lambda x: REGISTRY["b"](x)


class ClassHeld(Lambda):
    held: nn.Module

    def __init__(self) -> None:
        super().__init__()
        ClassHeld.held = self.b
        self.head = lambda x: ClassHeld.held(x)


class SharedMemory(Lambda):
    """A function holds the memory of a weight, not the weight."""

    def __init__(self) -> None:
        super().__init__()
        weight = self.b.weight.detach()
        self.head = lambda x: F.conv2d(x, weight)


@pytest.mark.filterwarnings("ignore:modules that did not run:diffsparse.SparsityWarning")
@pytest.mark.parametrize("make", [Registered, ClassHeld, SharedMemory])
def test_a_copy_that_uses_the_original_is_an_error(make: Callable[[], nn.Module]) -> None:
    model = make().eval()
    with pytest.raises(ds.SparsityError, match=r"still uses 'b\.weight' of the model itself"):
        ds.compact(model, torch.randn(2, 3, 8, 8))


class GlobalHook(nn.Module):
    """Its hook finds it by a global name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.seen = nn.Conv2d(3, 8, 3), {"y": torch.zeros(1, 8, 6, 6, dtype=torch.float64)}
        REGISTRY["model"] = self
        self.conv.register_forward_hook(lambda module, args, output: REGISTRY["model"].seen.update(y=output))

    def forward(self, x: Tensor) -> Tensor:
        self.conv(x)
        return self.seen["y"].mean((2, 3))


def test_a_hook_that_finds_the_model_by_a_global_name_is_an_error() -> None:
    model = randomise(GlobalHook())
    model(X)
    with pytest.raises(ds.SparsityError, match="Look for hooks and functions"):
        ds.compact(model, X)


def test_nothing_is_left_in_the_model() -> None:
    outside: list[Tensor] = []
    model: Any = with_dead(Extractor)
    model.net[0].register_forward_hook(lambda module, args, output: outside.append(output))
    model.train()
    state = torch.random.get_rng_state()
    ds.compact(model, X)
    assert not model.seen
    assert not outside
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.random.get_rng_state(), state)


class Stepped(Lambda):
    """Keeps a tensor with a history, as models do for an extra loss."""

    def forward(self, x: Tensor) -> Tensor:
        self.feature = self.norm(self.a(x))
        self.several = [self.feature * 2]
        return self.head(self.feature)


def test_a_tensor_with_a_history_that_a_training_step_left() -> None:
    model = with_dead(Stepped)
    model.train()
    model(X).sum().backward()
    small = ds.compact(model, X)
    model.eval()
    assert same(model, small.model.eval(), OTHER)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("normed", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_old_weight_norms(normed: Callable[[nn.Module], nn.Module]) -> None:
    model: Any = with_dead(Lambda)
    normed(model.b)
    model.train()
    model(X).sum().backward()
    model.eval()
    small = ds.compact(model, X)
    assert same(model, small.model, OTHER)
    assert small.model.a.out_channels == 5


@pytest.mark.parametrize("drop", [lambda y: torch.dropout(y, 0.5, True), lambda y: F.dropout(y, 0.5, True)])
def test_a_dropout_that_is_always_on_is_not_taken_for_nothing(drop: Callable[[Tensor], Tensor]) -> None:
    model: Any = with_dead(Lambda)
    model.head = lambda x: model.b(drop(x))
    small = ds.compact(model, X)
    torch.manual_seed(0)
    expected = model(OTHER)
    torch.manual_seed(0)
    assert torch.allclose(small.model(OTHER), expected, rtol=0, atol=1e-9)


def test_inside_of_autocast() -> None:
    model = with_dead(Lambda).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        small = ds.compact(model, X.float())
    assert small.model.a.out_channels == 5
    assert small.model.a.weight.dtype == torch.float32
    assert torch.allclose(model(OTHER.float()), small.model(OTHER.float()), atol=1e-5)


class Residual(nn.Module):
    """Compacts to a select, an expand, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1)
        self.last, self.c = nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.c(x + self.last(self.b(torch.relu(self.norm(x)))))


COMPILERS: dict[str, Callable[[nn.Module], Any]] = {
    "trace": lambda model: torch.jit.trace(model, X),
    "export": lambda model: torch.export.export(model, (X,)).module(),
    "compile": lambda model: torch.compile(model, backend="aot_eager"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", COMPILERS)
def test_a_compact_model_can_be_compiled(name: str) -> None:
    model = with_dead(Residual)
    small = ds.compact(model, X)
    assert small.plan.layers["norm"].select
    assert small.plan.layers["last"].expand
    with torch.no_grad():
        assert torch.allclose(COMPILERS[name](small.model)(X), model(X), rtol=0, atol=1e-9)
