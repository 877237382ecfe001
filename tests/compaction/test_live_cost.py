"""MACs counted from the plan are those of the compact model."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction import LiveMacs, live_macs, live_widths
from diffsparse.compaction.materialise import materialise
from diffsparse.models import DenseNet, MobileNetV1, PreResNet, ResNet
from diffsparse.module_tree import layer_widths
from diffsparse.testing import zero_channels, zero_random_channels
from tests.compaction.nets import randomise
from tests.compaction.networks import build, inputs, specification
from tests.compaction.tiny import tiny
from tests.wiring import nets as wired

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def after(model: nn.Module, example: Any) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ds.SparsityWarning)
        return ds.compact(model, example).after.macs


def thinned(model: nn.Module, rate: float = 0.5) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    model = randomise(model)
    for norm in model.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.affine:
            zero_random_channels(norm, rate, generator)
    return model


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(
    "make",
    [
        lambda: PreResNet(20, width=8),
        lambda: PreResNet(20, width=4, bottleneck=True),
        lambda: DenseNet(16, growth=4),
        lambda: MobileNetV1(multiplier=0.25),
        lambda: ResNet(10, blocks=(1, 1, 1, 1), width=8),
    ],
    ids=["preresnet", "bottleneck", "densenet", "mobilenet", "resnet"],
)
def test_models_of_the_package(make: Callable[[], nn.Module], rate: float) -> None:
    model = thinned(make(), rate)
    assert live_macs(model, IMAGES.double()) == after(model, IMAGES.double())


def test_dead_blocks_and_gates() -> None:
    model = thinned(PreResNet(20, width=4, bottleneck=True), 0.3)
    zero_channels(model.stages[0][1].bn3)
    zero_channels(model.stages[1][1].bn1)
    zero_channels(model.stages[2][1].bn2)
    gated = ds.sparsify(model)
    small = ds.compact(gated, IMAGES.double())
    assert {"removed", "map"} <= {action.tag for action in small.plan.layers.values()}
    assert live_macs(gated, IMAGES.double()) == small.after.macs
    left = layer_widths(small.model)
    assert live_widths(gated, IMAGES.double()) == {name: left.get(name, 0) for name in layer_widths(model)}
    assert 0 in live_widths(gated, IMAGES.double()).values()


class Products(nn.Module):
    """Matrix products that no rule describes, in modules that stay and in one that leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm = nn.Parameter(torch.randn(64, 64)), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        mixed = (x.flatten(2) @ self.mix).view(x.shape)
        return x + self.norm(mixed)


@pytest.mark.parametrize(
    "between",
    [
        nn.Conv2d(8, 8, 3, groups=2),
        nn.Conv2d(8, 8, 3, groups=8, padding=1),
        nn.Conv2d(8, 8, 3, groups=4, stride=2),
        nn.ConvTranspose2d(8, 8, 3, stride=2),
        nn.ConvTranspose2d(8, 8, 3, groups=2, output_padding=1, stride=2),
        nn.Sequential(nn.Conv2d(8, 8, 3), nn.Softmax(1), nn.Conv2d(8, 8, 1)),
        ds.SparseSum([nn.Conv2d(8, 8, 1) for _ in range(3)], ds.SignedGate.from_values([0.0, 1.0, 0.0])),
        Products(),
    ],
    ids=["groups", "depthwise", "strided", "transposed", "transposed groups", "opaque", "sum", "products"],
)
@pytest.mark.parametrize("dead", [[], [0, 1, 2, 4], range(8)])
def test_kinds_of_layers(between: nn.Module, dead: list[int]) -> None:
    model = tiny(between, dead=dead, fixed=[5])
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    assert live_macs(model, x) == after(model, x)
    if isinstance(between, Products):
        zero_channels(between.norm)
        assert live_macs(model, x) == after(model, x) < ds.measure(model, x, latency=False).macs


def test_linear_layers_and_weights_used_directly() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Linear(5, 12), nn.BatchNorm1d(12)
            self.second, self.third = nn.Linear(12, 12), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.norm(self.first(x)))
            x = F.linear(x, self.second.weight, self.second.bias)
            return self.third(self.second(x).relu())

    model = thinned(Net())
    x = torch.randn(4, 5, dtype=torch.float64)
    assert live_macs(model, x) == after(model, x)


@pytest.mark.parametrize("rate", [0.3, 0.8, 0.95])
def test_wired_stages(rate: float) -> None:
    model = wired.tiny(wired.drop(rate, seed=1), (4, 6, 1, 2), (6, 8, 2, 3))
    x = torch.randn(2, 2, 8, 8)
    whole = ds.measure(materialise(model), x, latency=False).macs
    assert live_macs(model, x) == after(model, x) <= whole * (1 if rate < 0.5 else 0.99)


@pytest.mark.parametrize("seed", range(60))
def test_random_networks(seed: int) -> None:
    spec = specification(seed)
    net = build(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ds.SparsityWarning)
        try:
            small = ds.compact(net, inputs(spec, net))
        except ds.SparsityError:
            return
    if not small.fallbacks and not small.insists_on_heads and not small.insists_on_head_width:
        assert live_macs(net, inputs(spec, net)) == small.after.macs


def test_the_whole_is_counted_once_and_zeros_each_time() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).train()
    counter = LiveMacs(model, torch.randn(1, 4))
    assert counter() == counter.whole.macs == 48
    zero_channels(model[1], [0, 1])
    assert counter() == 36
    assert all(module.training for module in model.modules())


def test_what_cannot_be_recorded_has_no_count() -> None:
    assert live_macs(nn.Linear(4, 2), torch.randn(1, 3)) is None
    assert live_widths(nn.Linear(4, 2), torch.randn(1, 3)) is None
