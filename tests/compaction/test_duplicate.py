"""Copies of module trees, against `copy.deepcopy`."""

import copy
import functools
import threading
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from diffsparse.compaction.duplicate import Duplicate
from tests.compaction.tiny import X, tiny


class Odd(nn.Module):
    """Holds what modules rarely hold."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.tied = self.layer.weight
        self.again = [self.layer, {"deep": (self.layer, [1, 2])}]
        self.myself = (self,)
        self.table: Any = OrderedDict({1: "one", ("a", 2): torch.ones(2)})
        self.register_buffer("view", torch.arange(6.0).view(2, 3).t())
        self.register_buffer("absent", None)
        self.layer.register_forward_hook(self.hook)

    def hook(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output + 1


def test_every_tensor_is_equal_and_its_own() -> None:
    model = tiny()
    made = Duplicate()(model)
    assert type(made) is type(model)
    assert torch.equal(made(X), model(X))
    before, after = model.state_dict(), made.state_dict()
    assert list(before) == list(after)
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name])
        assert tensor.data_ptr() != after[name].data_ptr()


def test_references_inside_lead_inside() -> None:
    model = Odd()
    made = Duplicate()(model)
    assert made.tied is made.layer.weight is not model.layer.weight
    assert made.again[0] is made.layer is made.again[1]["deep"][0]
    assert made.again[1]["deep"][1] == [1, 2]
    assert made.myself[0] is made
    assert list(made.table) == [1, ("a", 2)]
    assert made.table["a", 2] is not model.table["a", 2]
    assert made.absent is None
    (hook,) = made.layer._forward_hooks.values()
    assert hook.__self__ is made
    assert made.view.stride() == copy.deepcopy(model).view.stride()


@pytest.mark.parametrize("requires_grad", [True, False])
def test_flags_and_layout_are_kept(requires_grad: bool) -> None:
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last).requires_grad_(requires_grad).eval()
    made = Duplicate()(model)
    assert not made.training
    assert made.weight.requires_grad == requires_grad
    assert made.weight.is_contiguous(memory_format=torch.channels_last)
    assert made.weight.is_leaf


def test_a_class_that_copies_itself_is_let() -> None:
    class Own(nn.Linear):
        def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
            return nn.Identity()

    assert type(Duplicate()(nn.Sequential(Own(2, 2)))[0]) is nn.Identity


def test_a_class_with_a_state_of_its_own_is_asked() -> None:
    class Own(nn.Linear):
        def __getstate__(self) -> dict[str, Any]:
            return {**self.__dict__, "copied": True}

    assert Duplicate()(Own(2, 2)).copied


def test_a_tensor_with_a_history_is_copied_without_it() -> None:
    model = nn.Linear(2, 2)
    model.made = [model.weight * 2]
    (made,) = Duplicate()(model).made
    assert torch.equal(made, model.made[0])
    assert made.grad_fn is None


class Followed(nn.Module):
    """A layer that code reaches."""

    def __init__(self, reach: Callable[["Followed"], Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.layer, self.kept = nn.Linear(2, 2), dict[str, Tensor]()
        self.code = reach(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.code(x)


class Runner:
    """An object with a module in it."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer, self.lock = layer, [threading.Lock()]

    def run(self, x: Tensor) -> Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


def with_default(model: Followed) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor, layer: nn.Module = model.layer, *, scale: nn.Module = model.layer) -> Tensor:
        return layer(x) + scale(x)  # type: ignore[no-any-return]

    return run


def wrapped(model: Followed) -> Callable[[Tensor], Tensor]:
    inner = with_default(model)

    @functools.wraps(inner)
    def outer(x: Tensor) -> Tensor:
        return inner(x)

    return outer


def of_a_weak_set(model: Followed) -> Callable[[Tensor], Tensor]:
    held = weakref.WeakSet([model.layer])
    return lambda x: next(iter(held))(x)  # type: ignore[no-any-return]


def of_a_weak_dictionary(model: Followed) -> Callable[[Tensor], Tensor]:
    held = weakref.WeakValueDictionary({"a": model.layer})
    return lambda x: held["a"](x)


REACHES: dict[str, Callable[[Followed], Callable[[Tensor], Tensor]]] = {
    "closure": lambda model: lambda x: model.layer(x),
    "nested": lambda model: lambda x: (lambda y: model.layer(y))(x),
    "a function that holds a function": lambda model: (lambda inner: lambda x: inner(x))(lambda x: model.layer(x)),
    "weight": lambda model: (lambda weight: lambda x: x @ weight)(model.layer.weight),
    "default": with_default,
    "wraps": wrapped,
    "partial": lambda model: functools.partial(lambda layer, x: layer(x), model.layer),
    "bound method": lambda model: Runner(model.layer).run,
    "method of a module": lambda model: model.layer.forward,
    "object in a closure": lambda model: (lambda runner: lambda x: runner.run(x))(Runner(model.layer)),
    "dictionary": lambda model: (lambda held: lambda x: held["a"][0](x))({"a": [model.layer]}),
    "weak reference": lambda model: (lambda held: lambda x: held().layer(x))(weakref.ref(model)),
    "weak proxy": lambda model: (lambda held: lambda x: held(x))(weakref.proxy(model.layer)),
    "weak set": of_a_weak_set,
    "weak dictionary": of_a_weak_dictionary,
}


@pytest.mark.parametrize("name", REACHES)
def test_code_leads_into_the_copy(name: str) -> None:
    model = Followed(REACHES[name])
    x = torch.randn(3, 2)
    made = Duplicate()(model)
    assert torch.equal(made(x), model(x))
    with torch.no_grad():
        before = model(x)
        made.layer.weight.zero_()
        made.layer.bias.zero_()
    assert not made(x).any()
    assert torch.equal(model(x), before)


def test_a_hook_writes_into_the_copy() -> None:
    model = Followed(lambda model: lambda x: model.layer(x))
    model.layer.register_forward_hook(lambda module, args, output: model.kept.update(y=output))
    record = model.kept.update
    model.layer.register_forward_pre_hook(lambda module, args: record(x=args[0]))
    made = Duplicate()(model)
    made(torch.ones(1, 2))
    assert sorted(made.kept) == ["x", "y"]
    assert not model.kept


def test_code_that_leads_elsewhere_is_shared() -> None:
    seen: list[Tensor] = []
    outside = nn.Linear(2, 2)
    model = Followed(lambda model: lambda x: outside(x))
    model.layer.register_forward_hook(lambda module, args, output: seen.append(output))
    made = Duplicate()(model)
    assert made.code is model.code
    assert list(made.layer._forward_hooks.values()) == list(model.layer._forward_hooks.values())


def test_a_variable_that_one_function_writes_and_another_reads_stays_one() -> None:
    def reach(model: Followed) -> Callable[[Tensor], Tensor]:
        last = torch.zeros(1)

        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            nonlocal last
            last = output

        model.layer.register_forward_hook(hook)

        def code(x: Tensor) -> Tensor:
            model.layer(x)
            return last

        return code

    made = Duplicate()(model := Followed(reach))
    x = torch.randn(2, 2)
    assert torch.equal(made(x), model(x))


def test_what_cannot_be_copied_is_shared() -> None:
    model = nn.Linear(2, 2)
    model.lock = threading.Lock()
    made = Duplicate()(model)
    assert made.lock is model.lock
    assert made.weight is not model.weight


def test_functions_inside_of_a_class_that_copies_itself() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    parametrize.register_parametrization(model[0], "weight", nn.Identity())
    model[0].register_forward_hook(lambda module, args, output: output + model[0].bias)
    made = Duplicate()(model)
    x = torch.randn(3, 2)
    with torch.no_grad():
        made[0].bias.zero_()
        assert torch.allclose(made(x), x @ model[0].weight.T)


def test_objects_keep_slots_items_and_entries() -> None:
    class Slotted:
        __slots__ = ("layer",)

    model = nn.Linear(2, 2)
    model.slotted, model.queue = Slotted(), deque([model], maxlen=3)
    model.slotted.layer = model
    model.table = defaultdict(list, {"a": [model]})
    made = Duplicate()(model)
    assert made.slotted.layer is made.queue[0] is made.table["a"][0] is made
    assert made.queue.maxlen == 3
    assert made.table["b"] == []
