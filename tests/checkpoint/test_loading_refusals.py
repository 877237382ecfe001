"""Files and models that do not belong together: one error in words, and the model stays as it is."""

import pytest
from torch import nn

import diffsparse as ds
from diffsparse.checkpoint import container as read_module
from diffsparse.checkpoint import load, save
from diffsparse.errors import CheckpointError
from tests.checkpoint.examples import (
    Tied,
    compact_resnet,
    copied,
    gated_resnet,
    resnet,
    same_state,
    sparse_sum,
    trained,
)


def refused(thing, fresh, path, *messages):
    before = copied(fresh.state_dict())
    save(thing, path)
    with pytest.raises(CheckpointError) as caught:
        load(path, fresh)
    assert same_state(before, fresh.state_dict())
    for message in (str(path), *messages):
        assert message in str(caught.value)


@pytest.mark.parametrize("make", [compact_resnet, gated_resnet, resnet])
def test_wrong_number_of_classes(tmp_path, make):
    refused(make(), resnet(100), tmp_path / "net", "'classifier.", "shape (10,", "(100,")


@pytest.mark.parametrize("make", [compact_resnet, gated_resnet, resnet])
def test_wrong_class(tmp_path, make):
    missing = ["'stem.weight' is in the file but not in the model", "more"]
    refused(make(), nn.Linear(2, 3), tmp_path / "net", "PreResNet", "torch.nn.modules.linear.Linear", *missing)


@pytest.mark.parametrize("make", [compact_resnet, gated_resnet, resnet])
def test_wrong_block(tmp_path, make):
    refused(make(), resnet(bottleneck=True), tmp_path / "net", "does not fit")
    refused(make(bottleneck=True), resnet(), tmp_path / "net", "does not fit")


def test_three_differences_are_named(tmp_path):
    names = ["0.weight", "0.bias", "1.weight"]
    messages = [f"'{name}' is in the file but not in the model" for name in names]
    refused(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), nn.Linear(2, 3), tmp_path / "net", *messages, "and 3 more")


def test_a_sum_with_another_gate(tmp_path):
    refused(sparse_sum(), sparse_sum(ds.SimplexGate), tmp_path / "net", "is a SignedGate", "a SimplexGate")


def test_a_tie_that_the_file_does_not_have(tmp_path):
    refused(trained(Tied(tie=False)), Tied(), tmp_path / "net", "are one tensor in the model")


def test_models_without_room(tmp_path):
    save(nn.Linear(2, 3), tmp_path / "net")
    with pytest.raises(CheckpointError, match="'weight' of Linear is on the meta device"):
        load(tmp_path / "net", nn.Linear(2, 3, device="meta"))
    with pytest.raises(CheckpointError, match="got the class Linear"):
        load(tmp_path / "net", nn.Linear)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_models_have_no_room(tmp_path):
    save(nn.Linear(2, 3), tmp_path / "net")
    with pytest.raises(CheckpointError, match="'weight' of LazyLinear is lazy"):
        load(tmp_path / "net", nn.LazyLinear(3))


def test_a_file_replaced_while_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "net"
    save(nn.Linear(2, 3), path)
    check = read_module._check_hash

    def check_and_replace(*args):
        check(*args)
        save(nn.Linear(2, 3), path)

    monkeypatch.setattr(read_module, "_check_hash", check_and_replace)
    with pytest.raises(CheckpointError, match="was replaced while it was read"):
        load(path, nn.Linear(2, 3))


@pytest.mark.parametrize("path", [None, 3, b"net", "", "a\0b"])
def test_what_is_no_path(path):
    for call in (lambda: save(nn.Linear(2, 3), path), lambda: load(path, nn.Linear(2, 3))):
        with pytest.raises(CheckpointError, match="path must be the path of a file"):
            call()


def test_what_is_no_model(tmp_path):
    with pytest.raises(CheckpointError, match="expected a model"):
        save(None, tmp_path / "net")
    save(nn.Linear(2, 3), tmp_path / "net")
    with pytest.raises(CheckpointError, match="expected a model"):
        load(tmp_path / "net", None)


class Stubborn(nn.Linear):
    def _load_from_state_dict(self, *args):
        args[-1].append("no")


def test_a_model_that_does_not_take_its_state(tmp_path):
    save(nn.Linear(2, 3), tmp_path / "net")
    with pytest.raises(CheckpointError, match="did not take its state"):
        load(tmp_path / "net", Stubborn(2, 3))
