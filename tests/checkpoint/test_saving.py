"""What goes into the file, and what is refused."""

import errno
import os
import pickle
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import diffsparse as ds
from diffsparse import files as atomic_module
from diffsparse.checkpoint import CheckpointError, GateRecord, read_header, save
from diffsparse.checkpoint.saving import shared_names, unwrapped
from tests.checkpoint.examples import Odd, Tied, compact_resnet, gated_resnet, resnet, same_state


def test_header_of_a_compact_model(tmp_path):
    small = compact_resnet()
    save(small, tmp_path / "net")
    header = read_header(tmp_path / "net")
    assert (header.kind, header.model_class) == ("compact", "diffsparse.models.preactivation.PreResNet")
    assert header.plan == small.plan
    assert (header.diffsparse_version, header.torch_version) == (ds.__version__, torch.__version__)
    assert not header.gates
    assert list(header.tensors) == list(small.model.state_dict())


def test_header_of_a_gated_model(tmp_path):
    model = nn.Sequential(ds.sparsify(nn.BatchNorm1d(4), rgf=0.1), ds.SparseSum([nn.Identity(), nn.Identity()]))
    save(model, tmp_path / "net")
    header = read_header(tmp_path / "net")
    assert header.kind == "gated"
    assert header.gates == {
        "0.gate": GateRecord(kind="SignedGate", rgf=0.1, dims=[0]),
        "1.gate": GateRecord(kind="SimplexGate", rgf=None, dims=[0]),
    }


def test_header_of_a_plain_model(tmp_path):
    save(resnet(), tmp_path / "net")
    header = read_header(tmp_path / "net")
    assert (header.kind, header.plan, header.gates) == ("plain", None, {})


def test_other_readers_of_safetensors_see_the_state(tmp_path):
    model = Odd()
    save(model, tmp_path / "net")
    read = load_file(tmp_path / "net")
    assert same_state({name: read[name] for name in model.state_dict()}, model.state_dict())


def test_same_model_same_bytes(tmp_path):
    save(gated_resnet(), tmp_path / "a")
    save(gated_resnet(), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_tied_tensors_are_saved_once(tmp_path):
    save(Tied(), tmp_path / "net")
    header = read_header(tmp_path / "net")
    assert header.shared == {
        "again.weight": "layer.weight",
        "again.bias": "layer.bias",
        "head.weight": "embedding.weight",
    }
    assert not set(header.shared) & set(header.tensors)


def test_views_that_only_overlap_are_no_ties():
    whole = torch.randn(4)
    state = {"a": whole, "b": whole[:2], "c": whole.view(2, 2), "d": whole, "e": torch.zeros(0), "f": torch.zeros(0)}
    assert shared_names(state) == {"d": "a"}


def test_wrappers_are_taken_off(tmp_path):
    model = nn.Linear(2, 2)
    compiled = torch.compile(model, backend="eager")
    for wrapped in (nn.DataParallel(model), compiled, nn.DataParallel(compiled)):
        assert unwrapped(wrapped) is model
    save(compiled, tmp_path / "net")
    assert set(read_header(tmp_path / "net").tensors) == {"weight", "bias"}


def test_the_model_is_not_changed(tmp_path):
    model = gated_resnet().train()
    before = {name: (tensor, tensor.clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
    save(model, tmp_path / "net")
    assert model.training
    assert all(model.state_dict(keep_vars=True)[n] is t and torch.equal(t, c) for n, (t, c) in before.items())


class Extra(nn.Module):
    def get_extra_state(self):
        return {"any": "thing"}

    def set_extra_state(self, state):
        pass


def with_buffer(tensor):
    model = nn.Module()
    model.register_buffer("it", tensor)
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Extra(), "'_extra_state' cannot be saved: it is no tensor but a dict"),
        (with_buffer(torch.zeros(2, dtype=torch.complex128)), "'it' cannot be saved: .* torch.complex128"),
        (with_buffer(torch.zeros(2, device="meta")), "'it' cannot be saved: .* meta device"),
        (with_buffer(torch.eye(2).to_sparse()), "'it' cannot be saved: its layout is torch.sparse_coo"),
        ({"a": torch.zeros(2)}, "expected a model, .* got a dict"),
        (nn.Linear, "expected a model, .* got the class Linear"),
    ],
    ids=["extra state", "dtype", "meta", "sparse", "state dict", "class"],
)
def test_what_cannot_be_saved(tmp_path, model, message):
    (tmp_path / "net").write_bytes(b"old")
    with pytest.raises(CheckpointError, match=message):
        save(model, tmp_path / "net")
    assert (tmp_path / "net").read_bytes() == b"old"


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_layers_cannot_be_saved(tmp_path):
    with pytest.raises(CheckpointError, match="'weight' cannot be saved: it is lazy"):
        save(nn.LazyLinear(3), tmp_path / "net")


@pytest.mark.parametrize("written", [0, 100, 5000])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, written):
    path = tmp_path / "net"
    save(resnet(), path)
    old = path.read_bytes()

    class Full:
        def __init__(self, *args):
            self.file, self.left = open(*args), written  # noqa: SIM115

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, data):
            self.left -= len(data)
            if self.left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self.file.write(data)

    monkeypatch.setattr(atomic_module, "open", Full, raising=False)
    with pytest.raises(CheckpointError, match="No space left on device"):
        save(resnet(), path)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["net"]


def test_a_really_full_device(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with pytest.raises(CheckpointError, match="not an ordinary file"):
        save(nn.Linear(2, 2), "/dev/full")


def test_no_pickle(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("pickle was used")

    for module, name in [(pickle, "dump"), (pickle, "dumps"), (pickle, "Pickler"), (torch, "save")]:
        monkeypatch.setattr(module, name, fail)
    for number, model in enumerate((compact_resnet(), gated_resnet(), resnet(), Tied())):
        save(model, tmp_path / str(number))


def test_a_model_compacted_twice_goes_back_to_the_class_by_both_plans(tmp_path):
    small = compact_resnet()
    example = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        small.model.stages[0][0].bn2.weight[:2] = 0
        small.model.stages[0][0].bn2.bias[:2] = 0
    again = ds.compact(small.model.eval(), example)
    assert again.plan.earlier == (small.plan,)
    assert again.after.macs < small.after.macs
    save(again, tmp_path / "net")
    loaded = ds.load(tmp_path / "net", resnet()).eval()
    assert torch.equal(loaded(example), again.model(example))
    assert ds.compact(again.model, example).plan.earlier == (small.plan, replace(again.plan, earlier=()))
