"""Round trips: what was saved comes back, bit for bit, in a new model."""

import pickle

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.checkpoint import load, save
from tests.checkpoint.examples import (
    Odd,
    Tied,
    compact_resnet,
    copied,
    gated_resnet,
    resnet,
    same_state,
    sparse_sum,
    trained,
)

IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(5))


def round_trip(thing, fresh, path):
    """`thing` saved and loaded into `fresh`, which stays as it is."""
    before, kinds = copied(fresh.state_dict()), [type(module) for module in fresh.modules()]
    save(thing, path)
    again = load(path, fresh)
    assert again is not fresh
    assert same_state(before, fresh.state_dict())
    assert kinds == [type(module) for module in fresh.modules()]
    mine, new = ({t.data_ptr() for t in m.state_dict().values() if t.numel()} for m in (fresh, again))
    assert not mine & new
    saved = thing if isinstance(thing, nn.Module) else thing.model
    assert same_state(saved.state_dict(), again.state_dict())
    return again


@pytest.mark.parametrize("gated", [False, True], ids=["into plain", "into gated"])
@pytest.mark.parametrize("bottleneck", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_compact(tmp_path, seed, bottleneck, gated):
    dead = ("stages.1.0.bn2", "stages.0.0.bn1", "stages.2.0.bn2")[: seed + 1]
    small = compact_resnet(seed, dead=dead, bottleneck=bottleneck)
    fresh = resnet(bottleneck=bottleneck).eval()
    again = round_trip(small, ds.sparsify(fresh) if gated else fresh, tmp_path / "net")
    assert torch.equal(again(IMAGES), small.model(IMAGES))
    assert repr(again) == repr(small.model)


@pytest.mark.parametrize("options", [{"round_to": 2}, {"fold": True}], ids=str)
def test_compact_with_options(tmp_path, options):
    small = ds.compact(gated_resnet(1), IMAGES, **options)
    again = round_trip(small, resnet().eval(), tmp_path / "net")
    assert torch.equal(again(IMAGES), small.model(IMAGES))


def test_the_model_of_a_compact_result_remembers_its_plan(tmp_path):
    small = compact_resnet()
    again = round_trip(small.model, resnet().eval(), tmp_path / "net")
    assert torch.equal(again(IMAGES), small.model(IMAGES))
    ds.save(small, tmp_path / "whole")
    assert (tmp_path / "net").read_bytes() == (tmp_path / "whole").read_bytes()
    more = round_trip(again, resnet().eval(), tmp_path / "net")
    assert torch.equal(more(IMAGES), small.model(IMAGES))


def test_a_compact_model_takes_its_own_file(tmp_path):
    small = compact_resnet()
    again = round_trip(small, small.model, tmp_path / "net")
    assert torch.equal(again(IMAGES), small.model(IMAGES))


def test_compact_models_within_another_model(tmp_path):
    first, second = compact_resnet(), compact_resnet(seed=1)
    both = nn.ModuleList([first.model, second.model])
    again = round_trip(both, nn.ModuleList([resnet(), resnet()]).eval(), tmp_path / "net")
    assert torch.equal(again[0](IMAGES), first.model(IMAGES))
    assert torch.equal(again[1](IMAGES), second.model(IMAGES))


def test_compact_model_that_was_trained_on(tmp_path):
    small = compact_resnet()
    small.model.train()(IMAGES).sum().backward()
    torch.optim.SGD(small.model.parameters(), 0.1).step()
    again = round_trip(small, resnet(), tmp_path / "net").eval()
    assert torch.equal(again(IMAGES), small.model.eval()(IMAGES))


def test_compact_model_that_got_gates_again(tmp_path):
    small = compact_resnet()
    with pytest.warns(ds.SparsityWarning, match="left alone"):
        ds.sparsify(small.model, rgf=0.1)
    again = round_trip(small, resnet().eval(), tmp_path / "net")
    assert torch.equal(again(IMAGES), small.model(IMAGES))
    assert again.bn.gate.rgf == 0.1


@pytest.mark.parametrize("options", [{"affine": False}, {"track_running_stats": False}], ids=str)
@pytest.mark.parametrize("fold", [False, True])
def test_compact_with_batch_norms_that_have_less(tmp_path, options, fold):
    def net():
        return nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, **options), nn.ReLU(), nn.Conv2d(6, 4, 1))

    gated = ds.sparsify(trained(net()))
    gated[1].gate = ds.SignedGate.from_values([0.5, 0.0, 0.3, 0.0, 0.0, 0.1])
    small = ds.compact(gated, IMAGES, fold=fold)
    again = round_trip(small, net().eval(), tmp_path / "net")
    assert torch.equal(again(IMAGES), small.model(IMAGES))
    flags = [[p.requires_grad for p in model.parameters()] for model in (again, small.model)]
    assert flags[0] == flags[1]


@pytest.mark.parametrize("fresh", ["plain", "gated", "partly gated"])
def test_gated(tmp_path, fresh):
    model = gated_resnet(rgf=0.1)
    empty = resnet().eval()
    if fresh != "plain":
        ds.sparsify(empty, only=None if fresh == "gated" else "stages.0.*")
    again = round_trip(model, empty, tmp_path / "net")
    assert torch.equal(again(IMAGES), model(IMAGES))
    assert repr(again) == repr(model)
    assert all(gate.rgf == 0.1 for gate in again.modules() if isinstance(gate, ds.SignedGate))


def test_gated_in_part_with_several_settings(tmp_path):
    model = ds.sparsify(resnet(), only="stages.0.*", rgf=0.1)
    model = trained(ds.sparsify(model, only="stages.1.*"))
    again = round_trip(model, resnet().eval(), tmp_path / "net")
    assert repr(again) == repr(model)
    assert torch.equal(again(IMAGES), model(IMAGES))


def test_a_batch_norm_alone(tmp_path):
    model = ds.sparsify(trained(nn.BatchNorm1d(4)))
    again = round_trip(model, nn.BatchNorm1d(4), tmp_path / "net")
    assert isinstance(again, ds.SparseBatchNorm1d)


def test_shared_gated_layer(tmp_path):
    def net():
        norm = nn.BatchNorm1d(4)
        return nn.Sequential(norm, nn.Linear(4, 4), norm)

    model = trained(ds.sparsify(net()))
    again = round_trip(model, net().eval(), tmp_path / "net")
    assert again[0] is again[2]
    assert torch.equal(again(IMAGES[:, 0, :4, 0]), model(IMAGES[:, 0, :4, 0]))


@pytest.mark.parametrize("compacted", [False, True])
def test_sparse_sum(tmp_path, compacted):
    model = trained(sparse_sum())
    model[1].gate = ds.SignedGate.from_values([0.7, 0.0, -0.2])
    x = torch.randn(5, 4)
    thing = ds.compact(model, x) if compacted else model
    again = round_trip(thing, sparse_sum().eval(), tmp_path / "net")
    assert torch.equal(again(x), (thing.model if compacted else model)(x))


def test_plain(tmp_path):
    model = trained(resnet())
    again = round_trip(model, resnet().eval(), tmp_path / "net")
    assert torch.equal(again(IMAGES), model(IMAGES))


def test_ties_stay(tmp_path):
    tokens = torch.arange(6)
    model = trained(Tied())
    again = round_trip(model, Tied().eval(), tmp_path / "net")
    assert again.head.weight is again.embedding.weight
    assert again.again is again.layer
    assert torch.equal(again(tokens), model(tokens))
    loose = load(tmp_path / "net", Tied(tie=False).eval())
    assert loose.head.weight is not loose.embedding.weight
    assert torch.equal(loose(tokens), model(tokens))


def test_ties_stay_in_another_dtype(tmp_path):
    again = round_trip(trained(Tied()).bfloat16(), Tied(), tmp_path / "net")
    assert again.head.weight is again.embedding.weight
    assert again.head.weight.dtype == torch.bfloat16


def test_ties_stay_in_a_compact_model(tmp_path):
    model = trained(Tied())
    model.norm.weight.data[1] = model.norm.bias.data[1] = 0
    tokens = torch.arange(6)
    small = ds.compact(ds.sparsify(model), tokens)
    again = round_trip(small, Tied().eval(), tmp_path / "net")
    assert torch.equal(again(tokens), small.model(tokens))
    assert (again.head.weight is again.embedding.weight) == (small.model.head.weight is small.model.embedding.weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("make", [compact_resnet, gated_resnet], ids=["compact", "gated"])
def test_dtypes_are_those_of_the_file(tmp_path, make, dtype):
    thing = make()
    model = thing if isinstance(thing, nn.Module) else thing.model
    model.to(dtype)
    again = round_trip(thing, resnet().eval(), tmp_path / "net")
    assert again.stem.weight.dtype == dtype
    assert torch.equal(again(IMAGES.to(dtype)), model(IMAGES.to(dtype)))


def test_every_kind_of_tensor(tmp_path):
    model, fresh = Odd(), Odd()
    again = round_trip(model, fresh, tmp_path / "net")
    assert torch.equal(again.lost, fresh.lost)


def test_numbers_that_are_none(tmp_path):
    model = nn.Linear(2, 2)
    model.weight.data.copy_(torch.tensor([[float("nan"), float("inf")], [-0.0, 1e-45]]))
    round_trip(model, nn.Linear(2, 2), tmp_path / "net")


def test_nothing_to_save(tmp_path):
    round_trip(nn.ReLU(), nn.ReLU(), tmp_path / "net")


@pytest.mark.parametrize("make", [compact_resnet, gated_resnet, resnet])
def test_flags_are_those_of_the_given_model(tmp_path, make):
    save(make(), tmp_path / "net")
    fresh = resnet().train()
    fresh.stages[1].eval()
    fresh.stem.weight.requires_grad_(False)
    again = load(tmp_path / "net", fresh)
    flags = {name: module.training for name, module in fresh.named_modules()}
    for name, module in again.named_modules():
        assert module.training == (flags[name] if name in flags else not name.startswith("stages.1"))
    assert not again.stem.weight.requires_grad
    assert again.classifier.weight.requires_grad
    assert all(p.grad is None for p in again.parameters())


@pytest.mark.parametrize("make", [compact_resnet, gated_resnet, resnet])
def test_can_be_trained_and_copied(tmp_path, make):
    save(make(), tmp_path / "net")
    again = load(tmp_path / "net", resnet())
    again(IMAGES).sum().backward()
    torch.optim.SGD(again.parameters(), 0.1).step()
    save(again, tmp_path / "net")


def test_another_class_that_fits(tmp_path):
    class Other(nn.Linear):
        pass

    round_trip(nn.Linear(2, 3), Other(2, 3), tmp_path / "net")


def test_a_wrapped_model(tmp_path):
    save(nn.DataParallel(nn.Linear(2, 3)), tmp_path / "net")
    assert isinstance(load(tmp_path / "net", torch.compile(nn.Linear(2, 3), backend="eager")), nn.Linear)


def test_no_pickle(tmp_path, monkeypatch):
    for number, model in enumerate((compact_resnet(), gated_resnet(), resnet())):
        save(model, tmp_path / str(number))

    def fail(*_, **__):
        raise AssertionError("pickle was used")

    for module, name in [(pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")]:
        monkeypatch.setattr(module, name, fail)
    for number in range(3):
        load(tmp_path / str(number), resnet())
