"""`load`: a file and the user's own class become the model that was saved."""

import copy
import os
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from diffsparse.checkpoint.fit import Difference, differences, in_words, missing_layers, split_ties
from diffsparse.checkpoint.header import Header
from diffsparse.checkpoint.reading import mapped_tensors, read_header
from diffsparse.checkpoint.saving import unwrapped
from diffsparse.compaction import apply_plan
from diffsparse.errors import CheckpointError, SparsityError
from diffsparse.gates import named_gates
from diffsparse.gating import sparsify
from diffsparse.module_tree import copy_training_flags, lazy_tensor, modules_by_name

Model = TypeVar("Model", bound=nn.Module)


def load(path: str | os.PathLike[str], model: Model) -> Model:
    """The model that `save` wrote, from the file and a fresh instance of its class; the instance is not changed.

    Args:
        path: a file that `save` wrote.
        model: an instance of the user's class, built with the same arguments, with gates or without.

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
        shaped = _compact_form(own, header) if header.kind == "compact" else copy.deepcopy(own)
        shaped = _with_gates(shaped, header)
        found = differences(header, shaped)
    except SparsityError as error:
        found = [Difference(str(error)), *missing_layers(header, own)]
    if not found:
        values = _values(path, header)
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
    """A copy of `model`, gates evaluated, made as small as the plan says."""
    assert header.plan is not None
    expected = {*header.all_tensors(), *header.plan.tensors}
    # a gate gave these norms a scale and a shift that the user's class does not have
    bare = {
        name
        for name, norm in model.named_modules()
        if isinstance(norm, _BatchNorm) and norm.bias is None and f"{name}.bias".lstrip(".") in expected
    }
    gated = _sparsified(copy.deepcopy(model), bare) if bare else model
    small = apply_plan(gated, header.plan)
    copy_training_flags(model, small)
    return small


def _with_gates(model: nn.Module, header: Header) -> nn.Module:
    """`model` with sparse batch norms and gate settings as in the file."""
    modules = modules_by_name(model)
    # a gate that the model lacks in a batch norm: the saved one was sparse
    owners = {name.rpartition(".")[0] for name in header.gates if name not in modules}
    if missing := {name for name in owners if isinstance(modules.get(name), _BatchNorm)}:
        model = _sparsified(model, missing)
    for name, gate in named_gates(model):
        if name in header.gates:
            gate.rgf = header.gates[name].rgf
    return model


def _sparsified(model: nn.Module, names: set[str]) -> nn.Module:
    return sparsify(model, lambda name, _: name in names, start=0.5)


def _values(path: str | os.PathLike[str], header: Header) -> dict[str, Tensor]:
    """The tensors of the file by all their names, mapped from the disk rather than read into memory."""
    values = mapped_tensors(path, header.tensors, header.sha256)
    return values | {alias: values[name] for alias, name in header.shared.items()}


def _misfit(path: str | os.PathLike[str], header: Header, model: nn.Module, found: list[Difference]) -> str:
    kind = type(model)
    cut = header.kind != "compact" and any(difference.of_shape for difference in found)
    hint = ". If the file holds the .model of a compact result: save the whole result instead" if cut else ""
    return (
        f"'{os.fspath(path)}', a {header.kind} {header.model_class}, does not fit this "
        f"{kind.__module__}.{kind.__qualname__}: {in_words(found)}{hint}"
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
