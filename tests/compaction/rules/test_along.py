"""Softmax and norms: what reads all channels, what reads a group, what stays constant."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.testing import check_rule
from tests.compaction.nets import same
from tests.compaction.shrinks import shrinks
from tests.compaction.tiny import OTHER, X, analysed, chosen, complement, node_of, recorded, tiny


class ChannelsLast(nn.Module):
    """A norm over the last dimension, on images."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, y: Tensor) -> Tensor:
        return self.norm(y.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


RULES: dict[str, Callable[..., Tensor]] = {
    "softmax of pixels": lambda y: y * y.flatten(2).softmax(-1).view_as(y),
    "log softmax of pixels": lambda y: y * F.log_softmax(y, -1),
    "softmax of channels": lambda y: y * y.softmax(1),
    "softmax within heads": lambda y: y * y.unflatten(1, (2, -1)).softmax(2).flatten(1, 2),
    "normalize": lambda y: F.normalize(y, dim=1),
    "group norm": lambda y: y * F.group_norm(y, 2),
    "layer norm": lambda y: y * F.layer_norm(y.transpose(1, 3), y.shape[1:2]).transpose(1, 3),
    "layer norm of rows": lambda y: y * F.layer_norm(y, y.shape[3:]),
    "instance norm": lambda y: F.instance_norm(y),
}


@pytest.mark.parametrize("name", RULES)
def test_rule_holds(name: str) -> None:
    check_rule(RULES[name], trials=10)


@pytest.mark.parametrize("name", [name for name in RULES if name != "layer norm of rows"])
def test_nothing_dead_is_left(name: str) -> None:
    shrinks(tiny(RULES[name], dead=[0, 1, 2, 3, 5]))


def test_zeros_do_not_stay_zero_in_a_softmax() -> None:
    model = tiny(lambda y: y.flatten(2).softmax(-1).view_as(y), dead=[0], fixed=[1])
    assert not node_of(recorded(model), "softmax").output.fixed.any()
    assert not ds.compact(model, X).kept
    assert same(model, ds.compact(model, X).model, OTHER)


@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.RMSNorm(8)])
def test_a_scale_of_zero_leaves_the_shift(norm: nn.Module) -> None:
    model = tiny(ChannelsLast(norm), dead=[0, 1])
    norm.weight.data = torch.randn(8).double()
    norm.weight.data[[2, 5]] = 0
    if isinstance(norm, nn.LayerNorm):
        norm.bias.data = torch.randn(8).double()
    small = ds.compact(model, X)
    assert small.model.conv.out_channels == 6
    assert small.model.head.in_channels == 6
    assert any("read together" in entry.reason for entry in small.kept)
    assert same(model, small.model, OTHER)


def test_a_layer_norm_that_is_off_reads_nothing() -> None:
    model = tiny(lambda y: norm(y).cumsum(1) + y, dead=[0])
    norm = model.norm_off = ChannelsLast(nn.LayerNorm(8)).double()
    norm.norm.weight.data.zero_()
    model.head.weight.data[:, 3] = 0
    assert chosen(analysed(model).layers[0][1].rows) == complement(0, 3)


def test_constants_that_are_normalised_together_stay_constant() -> None:
    model = tiny(ChannelsLast(nn.LayerNorm(8)), fixed=range(8))
    assert node_of(recorded(model), "layer_norm").output.fixed.all()


def test_a_group_norm_reads_the_groups_it_must() -> None:
    model = tiny(nn.GroupNorm(4, 8), dead=[0, 1, 2], fixed=[6, 7])
    model.between.weight.data[[4, 5]] = 0
    model.between.bias.data = torch.randn(8).double()
    analysis = analysed(model)
    assert chosen(node_of(analysis.graph, "group_norm").output.fixed) == [0, 1, 4, 5, 6, 7]
    assert chosen(analysis.layers[0][1].rows) == [3]
    shrinks(model)


class OfPatches(nn.Module):
    """A group norm over channels whose pixels were sorted into patches, and a convolution that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 1)

    def forward(self, y: Tensor) -> Tensor:
        patches = F.unfold(y, 2, stride=2).unflatten(1, (8, -1))
        return y + self.mix(self.norm(patches)).mean((2, 3), keepdim=True)


def test_a_group_norm_of_patches() -> None:
    net = OfPatches()
    model = tiny(net, dead=[0, 1])
    net.norm.weight.data[[2, 5, 6]] = 0
    net.norm.bias.data = torch.randn(8).double()
    small = ds.compact(model, X)
    assert small.model.between.mix.in_channels == 5
    assert not small.fallbacks
    assert same(model, small.model, OTHER)


@pytest.mark.parametrize("norm", [nn.InstanceNorm2d(8, affine=True), nn.InstanceNorm2d(8, track_running_stats=True)])
def test_an_instance_norm_loses_channels(norm: nn.InstanceNorm2d) -> None:
    model = tiny(norm, dead=[0, 1], fixed=[4])
    small = shrinks(model)
    assert small.model.between.num_features == 5
    assert not small.kept


def test_an_instance_norm_without_tensors_keeps_its_width() -> None:
    small = shrinks(tiny(nn.InstanceNorm2d(8), dead=[0, 1], fixed=[4]))
    assert small.model.head.in_channels == 5
    assert any("number of channels" in entry.reason for entry in small.kept)
