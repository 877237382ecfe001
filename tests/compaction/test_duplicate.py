"""Copies of module trees, against `copy.deepcopy`."""

import copy
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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


def test_a_tensor_with_a_history_is_refused_as_by_deepcopy() -> None:
    model = nn.Linear(2, 2)
    model.made = model.weight * 2
    with pytest.raises(RuntimeError, match="graph leaves"):
        Duplicate()(model)
