"""Names of modules and tensors, against those that torch gives; flags, replacements and wrappers."""

import pytest
import torch
from torch import nn

from diffsparse.compaction.adaptors import Constant, RaggedConv
from diffsparse.module_tree import (
    copy_training_flags,
    layer_widths,
    lazy_tensor,
    modules_by_name,
    replace_modules,
    tensors_by_name,
    uncompiled,
    without_wrappers,
)
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


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_tensor_is_named_until_it_has_a_size() -> None:
    model = nn.Sequential(nn.ReLU(), nn.LazyBatchNorm1d(affine=False))
    assert lazy_tensor(model) == "1.running_mean"
    assert lazy_tensor(nn.LazyLinear(2)) == "weight"
    model(torch.randn(3, 2))
    assert lazy_tensor(model) is None


def test_wrappers_are_taken_off() -> None:
    model = nn.Sequential()
    compiled = torch.compile(model, backend="eager")
    assert uncompiled(compiled) is model
    assert uncompiled(model) is model
    parallel = nn.DataParallel(model)
    assert uncompiled(parallel) is parallel
    for wrapped in (model, compiled, parallel, nn.DataParallel(compiled), torch.compile(parallel, backend="eager")):
        assert without_wrappers(wrapped) is model


def test_training_flags_go_by_name() -> None:
    source, target = tied().train(), nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.ReLU(), nn.ReLU())
    source[0].eval()
    copy_training_flags(source, target.eval())
    assert [module.training for module in target] == [False, True, True, True]
    copy_training_flags(source.eval(), target)
    assert not any(module.training for module in target.modules())


def test_a_module_is_replaced_wherever_it_is() -> None:
    model = tied()
    old, new = model[0], nn.ReLU()
    assert replace_modules(model, {old: new}) is model
    assert model[0] is model[1][1] is new
    assert replace_modules(old, {old: new}) is new


def test_widths_of_layers_that_are_there() -> None:
    net = nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3), nn.Sequential(nn.ReLU(), nn.Linear(5, 4)))
    assert layer_widths(net) == {"0": 3, "2.1": 4}
    # a computed weight counts, too
    nn.utils.parametrizations.weight_norm(net[2][1])
    assert layer_widths(net) == {"0": 3, "2.1": 4}


def test_what_stands_for_a_layer_that_is_gone_has_no_width() -> None:
    gone = Constant(8, 1, None, False)
    gone.stand_for(nn.Linear(4, 8))
    assert gone.out_features == 8
    assert layer_widths(nn.Sequential(gone, nn.Linear(8, 2))) == {"1": 2}


def test_groups_of_different_sizes_have_one_width() -> None:
    conv = nn.Conv2d(4, 6, 1, groups=2)
    assert layer_widths(nn.Sequential(RaggedConv(conv, [(2, 2), (4, 2)]))) == {"0": 6}
