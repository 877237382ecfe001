"""Layers, blocks and branches that die."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.adaptors import Constant
from diffsparse.compaction.stretch import ConstantMap
from diffsparse.models import PreResNet
from diffsparse.testing import zero_channels
from tests.compaction.nets import randomise, same

X = torch.randn(2, 3, 8, 8, dtype=torch.float64)
OTHER = torch.randn(3, 3, 12, 12, dtype=torch.float64)


@pytest.fixture
def model() -> PreResNet:
    return randomise(PreResNet(20, width=4, bottleneck=True))  # type: ignore[return-value]


def test_a_block_with_a_dead_branch_leaves_the_tree_and_others_keep_their_names(model: PreResNet) -> None:
    zero_channels(model.stages[1][1].bn3)
    small = ds.compact(model, X).model
    assert [name for name, _ in small.stages[1].named_children()] == ["0"]
    assert same(model, small, OTHER)
    zero_channels(model.stages[1][0].bn3)
    small = ds.compact(model, X).model
    assert isinstance(small.stages[1][0].conv3, Constant)
    assert same(model, small, OTHER)


def test_second_batch_norm_dead_leaves_a_constant_vector(model: PreResNet) -> None:
    zero_channels(model.stages[0][1].bn2)
    small = ds.compact(model, X)
    block = small.model.stages[0][1]
    assert isinstance(block.conv2, Constant)
    assert isinstance(block.conv3, Constant)
    assert same(model, small.model, OTHER)


def test_first_batch_norm_dead_leaves_a_map_for_every_size(model: PreResNet) -> None:
    zero_channels(model.stages[0][1].bn1)
    small = ds.compact(model, X)
    maps = [name for name, module in small.model.named_modules() if isinstance(module, ConstantMap)]
    assert maps == ["stages.0.1.conv3"]
    for size in (1, 2, 5, 8, 9, 12):
        assert same(model, small.model, torch.randn(5, 3, size, size + 1, dtype=torch.float64))


def test_a_dead_network_is_right_at_every_size() -> None:
    # what is left of the border in the mean depends on the size of the image
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 3, padding=1), nn.AdaptiveAvgPool2d(1)]
    model = randomise(nn.Sequential(*layers, nn.Flatten(), nn.Linear(5, 2)))
    model[1].weight.data.zero_()
    with pytest.warns(ds.SparsityWarning, match="no longer depends on its input"):
        small = ds.compact(model, X).model
    assert isinstance(small[2], ConstantMap)
    for size in (1, 2, 5, 8, 9, 12):
        assert same(model, small, torch.randn(5, 3, size, size + 1, dtype=torch.float64))


def test_everything_dead_but_the_shortcuts(model: PreResNet) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d) and name != "bn":
            zero_channels(module)
    small = ds.compact(model, X)
    assert same(model, small.model, OTHER)
    layers = [name for name, m in small.model.named_modules() if isinstance(m, nn.Conv2d)]
    assert layers == ["stem", "stages.0.0.shortcut", "stages.1.0.shortcut", "stages.2.0.shortcut"]


def test_a_dead_branch_of_a_concatenation() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4))
            self.b = nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6))
            self.head = nn.Conv2d(10, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.cat([F.max_pool2d(self.a(x), 2), F.max_pool2d(self.b(x), 2)], 1))

    model = randomise(Branches())
    zero_channels(model.b[1])
    small = ds.compact(model, X)
    assert isinstance(small.model.b[0], Constant)
    assert small.model.head.in_channels == 4
    assert same(model, small.model, OTHER)


def test_a_dropped_component_of_a_sum_leaves_and_the_others_keep_their_names() -> None:
    convs = [nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 5, padding=2)]
    mix = ds.SparseSum(convs, ds.SignedGate.from_values([0.5, 0.0, -0.2]))
    model = nn.Sequential(mix, nn.ReLU()).double().eval()
    small = ds.compact(model, X)
    assert [name for name, _ in small.model[0].components.named_children()] == ["0", "2"]
    assert same(model, small.model, OTHER)
