"""A fresh start with the architecture of a file."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.compaction.adaptors import Constant
from diffsparse.methods import Method, Scratch
from diffsparse.models import create
from tests.methods.tiny import EXAMPLE, accuracy, net, spread, state, train, unchanged


def kill(norm: nn.BatchNorm2d, channels: slice = slice(None), *, shift: float = 0.0) -> None:
    norm.weight.data[channels] = 0
    norm.bias.data[channels] = shift


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A compact file with sliced layers, a layer that became a constant and one with a new bias."""
    model = spread(net())
    kill(model.stages[0][0].bn2, slice(3))
    kill(model.stages[1][0].bn2)
    kill(model.stages[2][0].bn1, slice(2))
    kill(model.bn, slice(8), shift=1.0)
    path = tmp_path / "small.safetensors"
    ds.save(ds.compact(model.eval(), EXAMPLE), path)
    return path


def test_same_shapes_as_the_file_and_other_numbers(file: Path) -> None:
    fresh = net(seed=1)
    before = state(fresh)
    small, saved = Scratch(like=file).prepare(fresh), ds.load(file, net(seed=2))
    shapes = {name: tensor.shape for name, tensor in small.state_dict().items()}
    assert shapes == {name: tensor.shape for name, tensor in saved.state_dict().items()}
    assert small.stages[0][0].conv1.out_channels == 1
    assert not torch.equal(small.stem.weight, saved.stem.weight)
    assert unchanged(fresh, before)
    assert small.training
    assert all(parameter.requires_grad for parameter in small.parameters())


def test_nothing_learned_comes_along(file: Path) -> None:
    small, saved = Scratch(like=file).prepare(net()), ds.load(file, net())
    constants = [name for name, module in small.named_modules() if isinstance(module, Constant)]
    assert constants
    for name in constants:
        assert not small.get_submodule(name).numbers.any()
    for norm in (module for module in small.modules() if isinstance(module, nn.BatchNorm2d)):
        assert torch.equal(norm.weight, torch.ones_like(norm.weight))
        assert not norm.bias.any()
        assert not norm.running_mean.any()
    assert saved.bn.running_mean.any()


def test_weights_are_sliced_and_scaled_to_the_variance_of_the_wide_layer(file: Path) -> None:
    fresh = net(seed=1)
    small = Scratch(like=file).prepare(fresh)
    conv = "stages.0.0.conv1"
    # no input lost, three of four outputs
    torch.testing.assert_close(small.get_submodule(conv).weight, fresh.get_submodule(conv).weight[3:])
    conv = "stages.0.0.conv2"
    # three of four inputs lost
    torch.testing.assert_close(small.get_submodule(conv).weight, 2 * fresh.get_submodule(conv).weight[:, 3:])
    torch.testing.assert_close(small.classifier.weight, math.sqrt(2) * fresh.classifier.weight[:, 8:])


def test_variance_of_outputs_is_kept_over_many_draws(tmp_path: Path) -> None:
    def wide() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(1, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 256, 3, groups=2))

    trained = wide()
    for half in (slice(0, 24), slice(32, 56)):
        kill(trained[1], half)
    ds.save(ds.compact(trained, torch.zeros(1, 1, 8, 8)), tmp_path / "x")
    torch.manual_seed(0)
    fresh = wide()
    small = Scratch(like=tmp_path / "x").prepare(fresh)
    assert small[3].in_channels == 16
    noise = torch.randn(16, 64, 4, 4)
    expected, got = fresh[3](noise).var().item(), small[3](noise[:, :16]).var().item()
    assert abs(got / expected - 1) < 0.1


def test_it_trains_and_is_saved_with_the_plan(file: Path, tmp_path: Path) -> None:
    method = Scratch(like=file)
    fresh = net(seed=1)
    model = train(method.prepare(fresh), method, steps=60)
    assert accuracy(model) > 0.8
    again = method.compacted(model, fresh, EXAMPLE)
    assert again.model is model
    assert again.after.macs < again.before.macs
    ds.save(again, tmp_path / "again.safetensors")
    loaded = ds.load(tmp_path / "again.safetensors", net(seed=3))
    assert accuracy(loaded) == accuracy(model)
    ds.save(Method().compacted(model, fresh, EXAMPLE), tmp_path / "twice.safetensors")
    assert accuracy(ds.load(tmp_path / "twice.safetensors", net(seed=4))) == accuracy(model)


def test_files_that_hold_no_such_architecture(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    with pytest.raises(ds.SparsityError, match="there is no file"):
        Scratch(like=other).prepare(net())
    ds.save(net(), other)
    with pytest.raises(ds.SparsityError, match="holds a plain model; scratch needs the file of a compact one"):
        Scratch(like=other).prepare(net())
    with pytest.raises(ds.SparsityError, match=r"small\.safetensors' does not fit this Linear: .*does not have"):
        Scratch(like=file).prepare(nn.Linear(2, 2))
    ds.save(ds.compact(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)).eval(), torch.zeros(2, 2), fold=True), other)
    with pytest.raises(ds.SparsityError, match="are folded, for inference"):
        Scratch(like=other).plan()


def test_a_gated_run_and_a_fresh_plain_model_fit(tmp_path: Path) -> None:
    gated = ds.sparsify(net(), start=0.5)
    gated.bn.gate = ds.SignedGate.from_values([0.0] * 12 + [0.5] * 4)
    ds.save(ds.compact(gated.eval(), EXAMPLE), tmp_path / "x")
    small = Scratch(like=tmp_path / "x").prepare(net(seed=1))
    assert small.bn.num_features == small.classifier.in_features == 4
    assert torch.equal(small.bn.weight, torch.ones(4))


def make(name: str) -> nn.Module:
    return create(name, 4, in_channels=1)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("preresnet8", {"macs": 0.5}),
        ("preresnet8-0.5", {"params": 0.3}),
        ("densenet10", {"macs": 0.6, "params": 0.5}),
        ("mobilenetv1-0.25", {"bytes": 100_000}),
    ],
)
def test_the_widest_network_of_the_family_that_fits(name: str, asked: dict[str, float]) -> None:
    method, example = Scratch(**asked), torch.zeros(1, 1, 16, 16)
    found = method.network(name, make, example)
    whole, cost = (ds.measure(make(net), example, latency=False) for net in (name, found))
    limits = {key: limit if limit > 1 else limit * getattr(whole, key) for key, limit in asked.items()}
    assert all(getattr(cost, key) <= limit for key, limit in limits.items())
    assert type(make(found)) is type(make(name))
    multiplier = float(found.rsplit("-", 1)[1])
    # the next step of the multiplier is too wide
    for wider in (f"{name.split('-')[0]}-{multiplier + step / 1000:.4f}" for step in range(1, 200)):
        more = ds.measure(make(wider), example, latency=False)
        if more.params != cost.params:
            assert any(getattr(more, key) > limit for key, limit in limits.items())
            break
    fresh = make(found)
    assert method.prepare(fresh) is fresh


def test_what_has_no_narrower_form() -> None:
    example = torch.zeros(1, 1, 8, 8)
    with pytest.raises(ds.SparsityError, match=r"traffic-gcn has no width multiplier.*; give like=FILE"):
        Scratch(macs=0.5).network("traffic-gcn", make, example)
    with pytest.raises(ds.SparsityError, match=r"my\.own:Net has no width multiplier"):
        Scratch(macs=0.5).network("my.own:Net", make, example)
    with pytest.raises(ds.SparsityError, match="macs=1e-06 is out of reach: the narrowest preresnet8 that there is"):
        Scratch(macs=1e-6).network("preresnet8", make, example)


def test_with_a_file_the_network_keeps_its_name(file: Path) -> None:
    assert Scratch(like=file).network("preresnet8", make, EXAMPLE) == "preresnet8"
