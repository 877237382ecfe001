"""Whether a file and a model belong together, and in words where they do not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffsparse.checkpoint.header import Header
from diffsparse.checkpoint.saving import gate_record, shared_names
from diffsparse.gates import named_gates

SHOWN = 3


@dataclass(frozen=True)
class Difference:
    """One way in which a file and a model differ."""

    sentence: str
    of_shape: bool = False
    """Whether a tensor of one name has two shapes."""


def differences(header: Header, model: nn.Module) -> list[Difference]:
    """Names, shapes, kinds of numbers and kinds of gates in which a file and a model differ."""
    saved, state = header.all_tensors(), model.state_dict()
    found = [Difference(f"'{name}' is in the file but not in the model") for name in saved if name not in state]
    found += [Difference(f"'{name}' is in the model but not in the file") for name in state if name not in saved]
    for name in (name for name in saved if name in state):
        ours, theirs = state[name], saved[name]
        if tuple(ours.shape) != theirs.shape:
            sentence = f"'{name}' has shape {theirs.shape} in the file and {tuple(ours.shape)} in the model"
            found.append(Difference(sentence, of_shape=True))
        elif ours.dtype != theirs.dtype and not (ours.is_floating_point() and theirs.dtype.is_floating_point):
            found.append(Difference(f"'{name}' is {theirs.dtype} in the file and {ours.dtype} in the model"))
    for name, gate in named_gates(model):
        mine, saved_gate = gate_record(gate), header.gates.get(name)
        if saved_gate is not None and (mine.kind, mine.dims) != (saved_gate.kind, saved_gate.dims):
            found.append(
                Difference(
                    f"'{name}' is a {saved_gate.kind} over dimensions {saved_gate.dims} in the file, "
                    f"a {mine.kind} over dimensions {mine.dims} in the model"
                )
            )
    return found


def missing_layers(header: Header, model: nn.Module) -> list[Difference]:
    """Tensors of the file whose layers the model does not have at all."""
    layers = {name for name, _ in model.named_modules(remove_duplicate=False)}
    names = (name for name in header.all_tensors() if name.rpartition(".")[0] not in layers)
    return [Difference(f"'{name}' is in the file but not in the model") for name in names]


def split_ties(values: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[Difference]:
    """Tensors that are one in the model's `state` and hold different `values` in the file."""
    return [
        Difference(f"'{name}' and '{other}' are one tensor in the model and two different ones in the file")
        for name, other in shared_names(state).items()
        if values[name] is not values[other] and not torch.equal(values[name], values[other])
    ]


def in_words(found: Sequence[Difference]) -> str:
    """The first few differences, and how many more there are."""
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(difference.sentence for difference in found[:SHOWN]) + more
