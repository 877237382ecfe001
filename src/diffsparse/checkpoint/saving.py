"""`save`: a model, gated, compact or plain, becomes one file."""

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.checkpoint.container import DTYPE_NAMES, write_tensors
from diffsparse.checkpoint.header import GateRecord, Header
from diffsparse.compaction.pipeline import Compacted
from diffsparse.compaction.plan import Plan
from diffsparse.errors import CheckpointError
from diffsparse.files import replacing
from diffsparse.gates import Gate, named_gates
from diffsparse.module_tree import lazy_tensor, without_wrappers
from diffsparse.version import __version__


def save(thing: Compacted[Any] | nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a model to one safetensors file, in one step: a failure leaves the old file as it was.

    Args:
        thing: what `compact` returned, a gated model, or any other model. Give the whole result of `compact`, not its
            `.model`: loading it into the user's class needs the plan.
        path: where; the folder must exist.

    The file holds all of `state_dict()`, tensors with several names once. Its header holds versions, the class, the
    plan, the kinds of gates and a hash of everything. Wrappers of DDP and `torch.compile` are taken off.

    Raises:
        CheckpointError: the file cannot be written, or something in the state cannot be saved without pickle.

    Example:
        >>> import tempfile, torch, diffsparse as ds
        >>> path, x = tempfile.mkdtemp() + "/net.safetensors", torch.randn(5, 3)
        >>> model = ds.sparsify(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
        >>> ds.save(model, path)
        >>> again = ds.load(path, nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
        >>> torch.equal(again(x), model(x))
        True
    """
    if isinstance(thing, Compacted) and thing.repeated:
        raise CheckpointError(
            "this model was compact before it was compacted again, so its plan does not lead back to your class; "
            "compact the gated model instead, or keep its state_dict yourself"
        )
    model = unwrapped(thing.model if isinstance(thing, Compacted) else thing)
    if lazy := lazy_tensor(model):
        raise CheckpointError(f"'{lazy}' cannot be saved: it is lazy and has no size yet; run the model once first")
    state = model.state_dict()
    for name, value in state.items():
        _check_tensor(name, value)
    shared = shared_names(state)
    once = {name: tensor for name, tensor in state.items() if name not in shared}
    header = describe(model, thing.plan if isinstance(thing, Compacted) else None, shared)
    with replacing(path) as file:
        write_tensors(file, once, header.to_metadata())


def unwrapped(model: object) -> nn.Module:
    """The user's own model, without the wrappers of data parallel training and `torch.compile`."""
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise CheckpointError(f"expected a model, an instance of nn.Module, got {what}")
    return without_wrappers(model)


def describe(model: nn.Module, plan: Plan | None, shared: dict[str, str]) -> Header:
    """The header of a file for `model`, without tensors."""
    gates = {name: gate_record(gate) for name, gate in named_gates(model)}
    return Header(
        kind="compact" if plan is not None else "gated" if gates else "plain",
        model_class=f"{type(model).__module__}.{type(model).__qualname__}",
        diffsparse_version=__version__,
        torch_version=str(torch.__version__),
        plan=plan,
        gates=gates,
        shared=shared,
    )


def gate_record(gate: Gate) -> GateRecord:
    """What the tensors of a gate do not tell."""
    dims = None if gate.dims is None else list(gate.dims)
    return GateRecord(kind=type(gate).__name__, rgf=gate.rgf, dims=dims)


def shared_names(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Names of tensors that came under another name before, with that name."""
    first: dict[tuple[object, ...], str] = {}
    shared: dict[str, str] = {}
    for name, tensor in state.items():
        if tensor.numel() == 0:
            continue
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if first.setdefault(place, name) != name:
            shared[name] = first[place]
    return shared


def _check_tensor(name: str, value: object) -> None:
    problem = ""
    if not isinstance(value, Tensor):
        problem = f"it is no tensor but a {type(value).__name__}, which only pickle could keep"
    elif value.is_meta:
        problem = "it is on the meta device and has no numbers"
    elif value.layout != torch.strided or value.is_quantized:
        problem = f"its layout is {value.layout if not value.is_quantized else 'quantized'}, only dense tensors can be"
    elif value.dtype not in DTYPE_NAMES:
        problem = f"safetensors has no place for {value.dtype}"
    if problem:
        raise CheckpointError(f"'{name}' cannot be saved: {problem}")
