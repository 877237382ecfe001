"""Choosing modules by pattern, type, predicate, or several of these."""

import pytest
from torch import nn

from diffsparse import SparsityError
from diffsparse.selection import select


@pytest.fixture
def model():
    def block():
        return nn.ModuleDict({"conv": nn.Conv2d(2, 2, 1), "bn1": nn.BatchNorm2d(2), "bn2": nn.BatchNorm2d(2)})

    return nn.ModuleDict({"layer1": nn.ModuleList([block(), block()]), "layer2": block(), "Head": nn.Linear(2, 2)})


def names(model, only):
    chosen = select(model, only)
    return {name for name, module in model.named_modules() if module in chosen}


def test_none_chooses_everything(model):
    assert select(model, None) == set(model.modules())


def test_a_pattern_is_a_glob_on_the_whole_name(model):
    assert names(model, "layer1.*.bn?") == {f"layer1.{i}.bn{j}" for i in (0, 1) for j in (1, 2)}
    assert names(model, "layer2.bn1") == {"layer2.bn1"}
    assert names(model, "bn1") == set()
    assert names(model, "head") == set()


def test_a_named_container_brings_all_that_is_inside(model):
    assert names(model, "layer2") == {"layer2", "layer2.conv", "layer2.bn1", "layer2.bn2"}
    assert select(model, "") == set(model.modules())


def test_a_type_is_an_isinstance_test(model):
    assert names(model, nn.Linear) == {"Head"}
    assert names(model, nn.modules.batchnorm._BatchNorm) == {n for n in names(model, None) if "bn" in n}


def test_a_function_gets_name_and_module(model):
    def wide_and_first(name, module):
        return name.startswith("layer1.0") and isinstance(module, nn.Conv2d)

    assert names(model, wide_and_first) == {"layer1.0.conv"}


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_sequence_chooses_the_union(model, kind):
    only = kind(["layer2.bn1", nn.Linear, lambda name, _: name == "layer1.0.bn2"])
    assert names(model, only) == {"layer2.bn1", "Head", "layer1.0.bn2"}
    assert select(model, []) == set()


def test_a_shared_module_is_found_by_each_of_its_names():
    shared = nn.BatchNorm1d(2)
    model = nn.ModuleDict({"first": shared, "second": shared})
    assert select(model, "second") == {shared}


@pytest.mark.parametrize("wrong", [3, ["layer2", 3], {"layer2"}])
def test_refuses_anything_else(model, wrong):
    with pytest.raises(SparsityError, match="a selection is a name pattern"):
        select(model, wrong)


def test_refuses_a_module_itself(model):
    with pytest.raises(SparsityError, match="a selection is a name pattern"):
        select(model, model["layer2"]["bn1"])
