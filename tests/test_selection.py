"""Choosing candidates by pattern, type, predicate, or several of these."""

import pytest
from torch import nn

from diffsparse import SparsityError
from diffsparse.selection import select


@pytest.fixture
def model():
    def block():
        return nn.ModuleDict({"conv": nn.Conv2d(2, 2, 1), "bn1": nn.BatchNorm2d(2), "bn2": nn.BatchNorm2d(2)})

    return nn.ModuleDict({"layer1": nn.ModuleList([block(), block()]), "layer2": block(), "Head": nn.Linear(2, 2)})


def norms(model):
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]


def names(model, only):
    chosen = select(model, only, norms(model), "batch norm")
    return {name for name, module in model.named_modules() if module in chosen}


def test_none_chooses_every_candidate(model):
    assert select(model, None, norms(model)) == set(norms(model))


def test_a_pattern_is_a_glob_on_the_whole_name(model):
    assert names(model, "layer1.*.bn?") == {f"layer1.{i}.bn{j}" for i in (0, 1) for j in (1, 2)}
    assert names(model, "layer2.bn1") == {"layer2.bn1"}


def test_a_named_container_brings_the_candidates_inside(model):
    assert names(model, "layer2") == {"layer2.bn1", "layer2.bn2"}


def test_a_type_is_an_isinstance_test_and_brings_what_is_inside(model):
    assert names(model, nn.modules.batchnorm._BatchNorm) == names(model, None)
    assert names(model, nn.ModuleList) == {f"layer1.{i}.bn{j}" for i in (0, 1) for j in (1, 2)}


def test_a_function_is_asked_about_candidates_alone_and_brings_nothing_else(model):
    asked = []
    assert names(model, lambda name, _: asked.append(name) or name.endswith("bn1")) == {
        "layer1.0.bn1",
        "layer1.1.bn1",
        "layer2.bn1",
    }
    assert set(asked) == names(model, None)
    with pytest.raises(SparsityError, match="chooses no batch norm of ModuleDict"):
        names(model, lambda name, _: name == "layer2")


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_sequence_chooses_the_union(model, kind):
    only = kind(["layer2.bn1", nn.ModuleList, lambda name, _: name == "layer2.bn2"])
    assert names(model, only) == names(model, None)


def test_a_shared_module_is_found_by_each_of_its_names():
    shared = nn.BatchNorm1d(2)
    model = nn.ModuleDict({"first": shared, "second": shared})
    assert select(model, "second", [shared]) == {shared}
    assert select(model, lambda name, _: name == "second", [shared]) == {shared}


@pytest.mark.parametrize("typo", ["bn1", "head", "Head", nn.Conv3d], ids=str)
@pytest.mark.parametrize("several", [False, True])
def test_a_member_that_chooses_nothing_is_named(model, typo, several):
    with pytest.raises(SparsityError) as caught:
        names(model, ["layer2", typo] if several else typo)
    assert str(caught.value) == f"the selection {typo!r} chooses no batch norm of ModuleDict"


@pytest.mark.parametrize("wrong", [3, "", ["layer2", 3], ["layer2", ""], {"layer2"}])
def test_refuses_anything_else(model, wrong):
    with pytest.raises(SparsityError, match="a selection is a name pattern"):
        names(model, wrong)


def test_refuses_an_empty_selection(model):
    with pytest.raises(SparsityError, match=r"the selection \[\] is empty; leave it out to choose every batch norm"):
        names(model, [])


def test_refuses_a_module_itself(model):
    with pytest.raises(SparsityError, match="a selection is a name pattern"):
        names(model, model["layer2"]["bn1"])
