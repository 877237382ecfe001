"""Layers whose weights are computed: they become ordinary layers where that saves something."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import diffsparse as ds
from diffsparse.compaction import Plan
from diffsparse.errors import SparsityError
from tests.compaction.nets import randomise, same
from tests.compaction.stored import ScaledLinear, StandardConv, old_weight_norm, plain

X = torch.randn(2, 3, 12, 12).double()
OTHER = torch.randn(3, 3, 9, 15).double()


def normed(layer: type[nn.Module] = nn.Conv2d) -> nn.Module:
    return plain(layer, parametrizations.weight_norm)


def test_what_saves_nothing_stays_as_it_is() -> None:
    net = normed()
    for norm in (net[1], net[4]):
        norm.weight.data.fill_(1.0)
    small = ds.compact(net, X)
    assert not small.plan.baked
    assert "parametrizations.weight.original0" in dict(small.model[0].named_parameters())


def test_only_layers_that_change_are_baked() -> None:
    net = normed()
    net[1].weight.data.fill_(1.0)
    small = ds.compact(net, X)
    assert set(small.plan.baked) == {"3", "8"}
    assert type(small.model[3]) is nn.Conv2d
    assert same(net, small.model, OTHER)


def test_the_plan_says_so() -> None:
    plan = ds.compact(normed(), X).plan
    assert "0  in 3 -> 3, out 8 -> 4, baked: its weights train as those of an ordinary layer" in str(plan)
    assert Plan.from_json(plan.to_json()) == plan


def test_a_plan_on_another_instance_bakes_the_weights_of_that_one() -> None:
    torch.manual_seed(1)
    first, second = normed(), normed().train()
    again = ds.apply_plan(second, ds.compact(first, X).plan)
    assert torch.equal(again[0].weight, second[0].weight[1::2])
    assert second.training
    assert all(module.training for module in second.modules())


def test_a_plan_for_a_layer_that_is_none() -> None:
    plan = ds.compact(normed(), X).plan
    other = normed()
    other[0] = nn.Sequential(nn.BatchNorm2d(3))
    with pytest.raises(SparsityError, match="Sequential no longer applies one layer to its input"):
        ds.apply_plan(other, plan)


def test_the_layer_keeps_its_settings() -> None:
    layers = [
        nn.Conv2d(3, 8, (3, 1), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
        nn.ConvTranspose2d(8, 8, 3, stride=2, padding=1, output_padding=1, bias=False),
        nn.Conv2d(8, 16, 3, padding="same", groups=4),
    ]
    parts = [part for layer in layers for part in (parametrizations.weight_norm(layer), nn.BatchNorm2d(8), nn.ReLU())]
    parts[-2] = nn.BatchNorm2d(16)
    net = randomise(nn.Sequential(*parts, nn.Conv2d(16, 2, 1)))
    for norm in (net[1], net[4], net[7]):
        norm.weight.data[::2] = 0
        norm.bias.data[::2] = -1
    small = ds.compact(net, X)
    assert set(small.plan.baked) == {"0", "3", "6"}
    assert same(net, small.model, OTHER)


def test_folding() -> None:
    net = plain(StandardConv)
    small = ds.compact(net, X, fold=True)
    assert isinstance(small.model[1], nn.Identity)
    assert same(net, small.model, OTHER)


def test_a_dead_layer_becomes_a_constant() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.dead, self.live = nn.BatchNorm2d(3), StandardConv(3, 4, 3, 2), nn.Conv2d(3, 4, 3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.dead(self.norm(x)) + self.live(x)

    net = Both().double().eval()
    net.norm.weight.data.zero_()
    net.norm.bias.data.fill_(0.5)
    small = ds.compact(net, X)
    assert not small.plan.baked
    assert "constant" in str(small.plan.layers["dead"])
    assert same(net, small.model, OTHER)


def test_a_layer_that_runs_twice_is_not_baked() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = ScaledLinear(6, 6), nn.BatchNorm1d(6)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(F.relu(self.norm(self.layer(x))))

    net = randomise(Twice())
    net.norm.weight.data[::2] = 0
    small, x = ds.compact(net, torch.randn(2, 6).double()), torch.randn(5, 6).double()
    assert not small.plan.baked
    assert any("weights that are computed" in kept.reason for kept in small.kept)
    assert same(net, small.model, x)


class Wide(nn.Conv2d):
    """Its weight depends on the width of the image."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * (x.shape[-1] / 12), self.bias, padding=self.padding)


class Data(nn.Conv2d):
    """Its weight depends on a number read from the data."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * float(x.max() > 2), self.bias, padding=self.padding)


class Cropped(nn.Conv2d):
    """Its kernel is larger for larger images."""

    def forward(self, x: Tensor) -> Tensor:
        size = min(x.shape[-1] // 4, 3)
        return F.conv2d(x, self.weight[..., :size, :size], self.bias)


class Noisy(nn.Conv2d):
    """Its weight differs each time."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight + torch.randn_like(self.weight), self.bias, padding=self.padding)


@pytest.mark.filterwarnings("ignore:the forward pass of")
@pytest.mark.parametrize("layer", [Wide, Data, Cropped, Noisy])
def test_weights_that_depend_on_the_input_are_not_baked(layer: type[nn.Module]) -> None:
    net = plain(layer)
    small = ds.compact(net, X)
    assert not {"0", "3"} & set(small.plan.baked)
    for x in (OTHER, torch.randn(1, 3, 24, 24).double(), torch.randn(2, 3, 10, 8).double() / 10):
        torch.manual_seed(0)
        expected = net(x).detach()
        torch.manual_seed(0)
        assert torch.allclose(small.model(x), expected, rtol=0, atol=1e-9 * float(expected.abs().max()))


def test_forward_hooks_stay_and_other_hooks_before_it_keep_the_layer() -> None:
    net, seen = normed(), []
    net[0].register_forward_hook(lambda module, args, output: seen.append(type(module)))
    net[3].register_forward_pre_hook(lambda module, args: None)
    small = ds.compact(net, X)
    assert set(small.plan.baked) == {"0", "8"}
    seen.clear()
    small.model(X)
    assert seen == [nn.Conv2d]


def test_pruned_by_torch() -> None:
    net = plain(nn.Conv2d)
    prune.ln_structured(net[0], "weight", amount=4, n=2, dim=0)
    small = ds.compact(net, X)
    assert type(small.model[0]) is nn.Conv2d
    assert same(net, small.model, OTHER)


def test_attributes_that_the_model_reads() -> None:
    class Rated(StandardConv):
        def __init__(self) -> None:
            super().__init__(3, 8, 3)
            self.rate = 0.5

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = Rated(), nn.BatchNorm2d(8), nn.Conv2d(8, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(F.relu(self.norm(self.first(x)))) * self.first.rate * len(self.first.stride)

    net = randomise(Net())
    net.norm.weight.data[::2] = 0
    small = ds.compact(net, X)
    assert set(small.plan.baked) == {"first"}
    assert not small.fallbacks
    assert same(net, small.model, OTHER)


@pytest.mark.parametrize("wrap", [old_weight_norm, nn.utils.spectral_norm])
def test_hooks_after_a_step_of_training(wrap) -> None:
    net = plain(nn.Conv2d, wrap).train()
    net(X).square().sum().backward()
    small = ds.compact(net, X)
    assert set(small.plan.baked) == {"0", "3", "8"}
    assert same(net.eval(), small.model.eval(), OTHER)


def test_frozen_layers_stay_frozen() -> None:
    net = normed().requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in ds.compact(net, X).model.parameters())


def test_momentum_starts_fresh() -> None:
    net = plain(StandardConv).train()
    optimizer = torch.optim.SGD(
        [{"params": net[0].parameters(), "lr": 0.5}, {"params": net[1:].parameters()}], lr=0.01, momentum=0.9
    )
    net(X).square().sum().backward()
    optimizer.step()
    for norm in (net[1], net[4]):
        norm.weight.data[::2] = 0
    small = ds.compact(net, X)
    later = ds.slice_optimizer(optimizer, net, small)
    assert set(small.plan.baked) == {"0", "3"}
    assert {id(p) for p in later.param_groups[0]["params"]} == {id(p) for p in small.model[0].parameters()}
    assert small.model[0].weight not in later.state
    assert small.model[8].weight in later.state


def test_parameters_under_other_names_are_found_by_the_optimiser() -> None:
    net = normed()
    optimizer = torch.optim.Adam(net.parameters())
    small = ds.compact(net, X)
    later = ds.slice_optimizer(optimizer, net, small)
    assert {id(p) for p in later.param_groups[0]["params"]} == {id(p) for p in small.model.parameters()}


def test_compacted_again(tmp_path: Path) -> None:
    net = normed()
    small = ds.compact(net, X).model
    small[4].weight.data[:2] = 0
    small[4].bias.data[:2] = -1
    again = ds.compact(small, X)
    ds.save(again, tmp_path / "net")
    loaded = ds.load(tmp_path / "net", normed())
    assert same(small, again.model, OTHER)
    assert same(again.model, loaded, OTHER)
    assert loaded[3].out_channels == 6


def test_as_a_part_of_another_model() -> None:
    small = ds.compact(normed(), X)
    whole = nn.Sequential(normed())
    again = ds.apply_plan(whole, small.plan.within("0"))
    assert torch.equal(again[0][0].weight, whole[0][0].weight[1::2])
