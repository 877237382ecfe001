"""Names of modules and tensors, against those that torch gives."""

import torch
from torch import nn

from diffsparse.module_tree import modules_by_name, tensors_by_name
from tests.compaction.tiny import tiny


def tied() -> nn.Module:
    """A module and a parameter that are held twice, a place that is empty, and a buffer."""
    first, second = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
    second.weight = first.weight
    model = nn.Sequential(first, nn.Sequential(second, first), tiny())
    model.register_module("absent", None)
    model.register_buffer("table", torch.ones(2))
    return model


def test_modules_have_the_names_that_torch_gives_them() -> None:
    model = tied()
    assert modules_by_name(model) == dict(model.named_modules())
    assert list(modules_by_name(model)) == [name for name, _ in model.named_modules()]


def test_tensors_have_the_names_that_torch_gives_them() -> None:
    model = tied()
    expected = [*model.named_parameters(), *model.named_buffers()]
    found = tensors_by_name(modules_by_name(model))
    assert list(found) == [name for name, _ in expected]
    assert all(found[name] is tensor for name, tensor in expected)


def test_a_buffer_that_is_a_parameter_goes_by_the_name_of_the_parameter() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("again", model.weight.data)
    model._buffers["again"] = model.weight
    assert list(tensors_by_name(modules_by_name(model))) == ["weight", "bias"]
