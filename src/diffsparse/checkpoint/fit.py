"""Whether a file and a model belong together, and in words where they do not."""

from collections.abc import Mapping
from itertools import islice

import torch
from torch import Tensor, nn

from diffsparse.checkpoint.header import Header
from diffsparse.checkpoint.saving import gate_dims, shared_names
from diffsparse.gates import named_gates

SHOWN = 3


def differences(header: Header, model: nn.Module) -> list[str]:
    """Names, shapes, kinds of numbers and kinds of gates in which a file and a model differ, one sentence each."""
    saved, state = header.all_tensors(), model.state_dict()
    found = [f"'{name}' is in the file but not in the model" for name in saved if name not in state]
    found += [f"'{name}' is in the model but not in the file" for name in state if name not in saved]
    for name in (name for name in saved if name in state):
        ours, theirs = state[name], saved[name]
        if tuple(ours.shape) != theirs.shape:
            found.append(f"'{name}' has shape {theirs.shape} in the file and {tuple(ours.shape)} in the model")
        elif ours.dtype != theirs.dtype and not (ours.is_floating_point() and theirs.dtype.is_floating_point):
            found.append(f"'{name}' is {theirs.dtype} in the file and {ours.dtype} in the model")
    gates = dict(named_gates(model))
    for name, record in header.gates.items():
        gate = gates.get(name)
        if gate is not None and (type(gate).__name__, gate_dims(gate)) != (record.kind, record.dims):
            mine = f"{type(gate).__name__} over dimensions {gate_dims(gate)}"
            found.append(
                f"'{name}' is a {record.kind} over dimensions {record.dims} in the file, a {mine} in the model"
            )
    return found


def strangers(header: Header, model: nn.Module) -> list[str]:
    """Tensors of the file whose layers the model does not have at all, one sentence each."""
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


def in_words(found: list[str]) -> str:
    """The first few differences, and how many more there are."""
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(islice(found, SHOWN)) + more
