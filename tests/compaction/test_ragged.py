"""Groups of different sizes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import diffsparse as ds
from diffsparse.compaction.actions import slice_tensor
from diffsparse.compaction.adaptors import RaggedConv
from tests.compaction.nets import same
from tests.compaction.tiny import OTHER, Tiny, X, tiny


def uneven(**settings: object) -> Tiny:
    model = tiny(nn.Conv2d(8, 8, 3, groups=2, **settings), dead=[0, 1, 2, 4])  # type: ignore[arg-type]
    model.head.weight.data[:, [0, 1]] = 0
    return model


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_each_group_is_a_convolution_of_its_own(dims: int, bias: bool) -> None:
    conv = [nn.Conv1d, nn.Conv2d, nn.Conv3d][dims - 1](3, 3, 2, stride=2, padding=1, bias=bias)
    conv.weight.data[0, 1:] = 0
    ragged = RaggedConv(conv, [[1, 1], [2, 3]])
    x = torch.randn(2, 4, *[5] * dims)
    function = [F.conv1d, F.conv2d, F.conv3d][dims - 1]
    first, second = (None, None) if conv.bias is None else (conv.bias[:1], conv.bias[1:])
    expected = [function(x[:, :1], conv.weight[:1, :1], first, 2, 1), function(x[:, 1:], conv.weight[1:], second, 2, 1)]
    assert torch.allclose(ragged(x), torch.cat(expected, 1), atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "bias": False}])
def test_uneven_groups_stay_exact(settings: dict[str, object]) -> None:
    model = uneven(**settings)
    small = ds.compact(model, X)
    assert isinstance(small.model.between, RaggedConv)
    assert small.model.between.blocks == [(2, 1), (4, 3)]
    assert same(model, small.model, OTHER)


def test_a_constant_input_folds_into_the_bias_of_its_group() -> None:
    model = uneven(bias=False)
    model.norm.weight.data[3] = 0
    model.norm.weight.data[7] = 0
    assert same(model, ds.compact(model, X).model, OTHER)


def test_names_in_the_state_dict_are_those_of_the_convolution() -> None:
    model = uneven()
    small = ds.compact(model, X)
    assert [key for key in small.model.state_dict() if "between" in key] == ["between.weight", "between.bias"]
    fresh = ds.apply_plan(uneven(), small.plan)
    fresh.load_state_dict(small.model.state_dict())
    assert same(small.model, fresh, OTHER)


def test_fewer_channels_are_left_than_in_even_groups() -> None:
    small = ds.compact(uneven(), X)
    assert small.model.between.weight.shape == (6, 3, 3, 3)
    assert small.model.head.in_channels == 6


def test_padding_of_the_weight_gets_no_gradient() -> None:
    small = ds.compact(uneven(), X).model
    small(X).square().sum().backward()
    grad = small.between.weight.grad
    assert grad[:2, 1:].eq(0).all()
    assert grad[:2, :1].ne(0).all()


def test_state_of_an_optimizer_is_sliced_by_heights() -> None:
    model = uneven()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(X).square().sum().backward()
    optimizer.step()
    for parameter in (model.norm.weight, model.norm.bias):
        parameter.data[[0, 1, 2, 4]] = 0
    model.head.weight.data[:, [0, 1]] = 0
    small = ds.compact(model, X)
    kept = small.plan.tensors["between.weight"]
    assert kept.heights == [2, 4]
    later = ds.slice_optimizer(optimizer, model, small)
    momentum = later.state[small.model.between.weight]["momentum_buffer"]
    before = optimizer.state[model.between.weight]["momentum_buffer"]
    assert torch.equal(momentum, slice_tensor(before, kept))
    assert torch.equal(momentum[2:], before[4:, 1:])
    assert torch.equal(momentum[:2, :1], before[2:4, 3:])
    small.model(X).square().sum().backward()
    later.step()


def test_prints_its_groups() -> None:
    assert "blocks=[(2, 1), (4, 3)]" in str(ds.compact(uneven(), X).model.between)
