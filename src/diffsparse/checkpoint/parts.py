"""Gated layers in a file: which entries of which gate each of them has, so that a model without gates can get them."""

from dataclasses import dataclass

from torch import nn

from diffsparse.errors import SparsityError
from diffsparse.gates import SignedGate, named_gates
from diffsparse.module_tree import modules_by_name
from diffsparse.nn import GatedLayer, GatePart, gate_layer
from diffsparse.nn.gated_layer import GATES


@dataclass(frozen=True, kw_only=True)
class PartRecord:
    """The gate of one side of a layer."""

    gate: str
    """The first name of the gate, which several layers may share."""
    size: int
    """Entries of the whole gate."""
    start: int
    stop: int
    block: int
    kind: str
    input_dim: int


def recorded_parts(model: nn.Module) -> dict[str, PartRecord]:
    """The parts of gates that layers of `model` have, by name."""
    names = {gate: name for name, gate in named_gates(model)}
    found: dict[str, PartRecord] = {}
    for name, layer in modules_by_name(model).items():
        if isinstance(layer, GatedLayer):
            for key in GATES.values():
                if isinstance(part := layer._modules.get(key), GatePart):
                    found[f"{name}.{key}".lstrip(".")] = PartRecord(
                        gate=names[part.gate],
                        size=len(part.gate.alpha),
                        start=part.start,
                        stop=part.stop,
                        block=part.block,
                        kind=part.kind,
                        input_dim=layer.input_dim,
                    )
    return found


def add_parts(model: nn.Module, records: dict[str, PartRecord]) -> None:
    """Gate the layers of `model`, in place, as in the file; those that have their gates already stay as they are."""
    modules = modules_by_name(model)
    gates = {name: gate for name, gate in named_gates(model) if isinstance(gate, SignedGate)}
    sides = {key: side for side, key in GATES.items()}
    for name, record in records.items():
        owner, _, key = name.rpartition(".")
        layer = modules.get(owner)
        weight = None if layer is None else layer._parameters.get("weight")
        if name in modules or layer is None or weight is None or key not in sides:
            continue
        if not 0 <= record.input_dim < weight.dim():
            raise SparsityError(f"'{name}' is a gate along dimension {record.input_dim}, which '{owner}' does not have")
        if record.gate not in gates:
            gates[record.gate] = SignedGate(record.size, device=weight.device, dtype=weight.dtype)
        part = GatePart(gates[record.gate], record.start, record.stop, record.block, record.kind)
        gate_layer(layer, sides[key], part, input_dim=record.input_dim)
