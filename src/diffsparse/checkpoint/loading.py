"""`load`: a file and the user's own class become the model that was saved; `read_header` needs only the file."""

import os
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from diffsparse.checkpoint.container import mapped_tensors, read_checked
from diffsparse.checkpoint.parts import add_parts
from diffsparse.checkpoint.saving import FORMAT_NAME, FORMAT_VERSION, GateRecord, Header, shared_names, unwrapped
from diffsparse.compaction import apply_plan
from diffsparse.compaction.apply import plan_of
from diffsparse.compaction.duplicate import duplicate
from diffsparse.errors import CheckpointError, SparsityError
from diffsparse.files import require_path
from diffsparse.gates import named_gates
from diffsparse.gating import sparsify
from diffsparse.module_tree import copy_training_flags, lazy_tensor, modules_by_name

Model = TypeVar("Model", bound=nn.Module)

SHOWN = 3


def read_header(path: str | os.PathLike[str]) -> Header:
    """The header of a file that `save` wrote, after its whole content was checked against its hash.

    Raises:
        CheckpointError: there is no such file, it is damaged, foreign, or has a format of another version.

    Example:
        >>> import tempfile
        >>> from diffsparse.checkpoint import save
        >>> path = tempfile.mkdtemp() + "/net.safetensors"
        >>> save(nn.Linear(3, 2), path)
        >>> read_header(path).tensors["weight"]
        TensorRecord(dtype=torch.float32, shape=(2, 3))
    """
    name = require_path(path)
    metadata, entries = read_checked(name, FORMAT_NAME, FORMAT_VERSION)
    try:
        header = Header.from_metadata(metadata, entries)
        header.all_tensors()
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise CheckpointError(f"the header of '{name}' cannot be understood: {error}") from error
    return header


def load(path: str | os.PathLike[str], model: Model) -> Model:
    """The model that `save` wrote, from the file and a fresh instance of its class; the instance is not changed.

    Args:
        path: a file that `save` wrote.
        model: an instance of the user's class, built with the same arguments, with gates or without; or the compact
            model itself.

    A compact file replays its plan on a copy of `model`, a gated one puts gates where they are missing. Tensors stay on
    the devices of `model` and get the dtypes of the file; training flags and `requires_grad` are those of `model`. The
    name of the class does not matter if all names and shapes fit.

    Raises:
        CheckpointError: the file is missing, damaged, foreign or too new, or does not fit the model.

    Example:
        >>> import tempfile, torch, diffsparse as ds
        >>> net = lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()
        >>> gated = ds.sparsify(net())
        >>> gated[1].gate = ds.SignedGate.from_values([1.0, 0.0, 0.5, 0.0])
        >>> path = tempfile.mkdtemp() + "/net.safetensors"
        >>> ds.save(ds.compact(gated, torch.randn(5, 3)), path)
        >>> ds.load(path, net())[3]
        Linear(in_features=2, out_features=2, bias=True)
    """
    own = unwrapped(model)
    header = read_header(path)
    _check_has_room(own)
    try:
        shaped = _compact_form(own, header) if header.kind == "compact" else duplicate(own)
        shaped = _with_gates(shaped, header)
        found = differences(header, shaped)
    except SparsityError as error:
        found = [str(error), *missing_layers(header, own)]
    if not found:
        values = mapped_tensors(path, header.tensors, header.sha256)
        values |= {alias: values[name] for alias, name in header.shared.items()}
        found = split_ties(values, shaped.state_dict())
    if found:
        raise CheckpointError(_misfit(path, header, own, found))
    _fill(shaped, values)
    return cast(Model, shaped)


def _check_has_room(model: nn.Module) -> None:
    kind = type(model).__name__
    if lazy := lazy_tensor(model):
        raise CheckpointError(f"'{lazy}' of {kind} is lazy and has no size yet; run it once first")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise CheckpointError(f"'{name}' of {kind} is on the meta device, where numbers have no room")


def _compact_form(model: nn.Module, header: Header) -> nn.Module:
    """A copy of `model`, gates evaluated, made as small as the plan says; it may be that small already."""
    assert header.plan is not None
    if plan_of(model) == header.plan:
        return duplicate(model)
    expected = {*header.all_tensors(), *header.plan.tensors}
    # a gate gave these norms a scale and a shift that the user's class does not have
    norms = {name: norm for name, norm in model.named_modules() if isinstance(norm, _BatchNorm)}
    bare = {name for name, norm in norms.items() if norm.bias is None and f"{name}.bias".lstrip(".") in expected}
    small = apply_plan(_sparsified(duplicate(model), bare) if bare else model, header.plan)
    copy_training_flags(model, small)
    return small


def _with_gates(model: nn.Module, header: Header) -> nn.Module:
    """`model` with sparse batch norms, gated layers and gate settings as in the file."""
    modules = modules_by_name(model)
    # where the file has a gate and the model a batch norm, the saved batch norm was sparse
    owners = {name.rpartition(".")[0] for name in header.gates if name not in modules}
    if missing := {name for name in owners if isinstance(modules.get(name), _BatchNorm)}:
        model = _sparsified(model, missing)
    add_parts(model, header.parts)
    for name, gate in named_gates(model):
        if name in header.gates:
            gate.rgf = header.gates[name].rgf
    return model


def _sparsified(model: nn.Module, names: set[str]) -> nn.Module:
    return sparsify(model, only=lambda name, _: name in names, start=0.5)


def _misfit(path: str | os.PathLike[str], header: Header, model: nn.Module, found: list[str]) -> str:
    kind = type(model)
    return (
        f"'{os.fspath(path)}', a {header.kind} {header.model_class}, does not fit this "
        f"{kind.__module__}.{kind.__qualname__}: {in_words(found)}"
    )


@torch.no_grad()
def _fill(model: nn.Module, values: dict[str, Tensor]) -> None:
    for name, tensor in model.state_dict(keep_vars=True).items():
        overlaps = any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True))
        if tensor.dtype != values[name].dtype or overlaps:
            # in place, so that a tensor with several names stays one
            tensor.data = torch.empty_like(tensor, dtype=values[name].dtype)
    try:
        model.load_state_dict(values, strict=True)
    except RuntimeError as error:
        raise CheckpointError(f"{type(model).__name__} did not take its state: {error}") from error


def differences(header: Header, model: nn.Module) -> list[str]:
    """Names, shapes, kinds of numbers and kinds of gates in which a file and a model differ."""
    saved, state = header.all_tensors(), model.state_dict()
    found = [f"'{name}' is in the file but not in the model" for name in saved if name not in state]
    found += [f"'{name}' is in the model but not in the file" for name in state if name not in saved]
    for name in (name for name in saved if name in state):
        ours, theirs = state[name], saved[name]
        if tuple(ours.shape) != theirs.shape:
            sentence = f"'{name}' has shape {theirs.shape} in the file and {tuple(ours.shape)} in the model"
            found.append(sentence)
        elif ours.dtype != theirs.dtype and not (ours.is_floating_point() and theirs.dtype.is_floating_point):
            found.append(f"'{name}' is {theirs.dtype} in the file and {ours.dtype} in the model")
    for name, gate in named_gates(model):
        mine, saved_gate = GateRecord.of(gate), header.gates.get(name)
        if saved_gate is not None and (mine.kind, mine.dims) != (saved_gate.kind, saved_gate.dims):
            theirs_is = f"a {saved_gate.kind} over dimensions {saved_gate.dims} in the file"
            ours_is = f"a {mine.kind} over dimensions {mine.dims} in the model"
            found.append(f"'{name}' is {theirs_is}, {ours_is}")
    return found


def missing_layers(header: Header, model: nn.Module) -> list[str]:
    """Tensors of the file whose layers the model does not have at all."""
    layers = {name for name, _ in model.named_modules(remove_duplicate=False)}
    names = (name for name in header.all_tensors() if name.rpartition(".")[0] not in layers)
    return [f"'{name}' is in the file but not in the model" for name in names]


def split_ties(values: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
    """Tensors that are one in the model's `state` and hold different `values` in the file."""
    return [
        f"'{name}' and '{other}' are one tensor in the model and two different ones in the file"
        for name, other in shared_names(state).items()
        if values[name] is not values[other] and not torch.equal(values[name], values[other])
    ]


def in_words(found: Sequence[str]) -> str:
    """The first few differences, and how many more there are."""
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + more
