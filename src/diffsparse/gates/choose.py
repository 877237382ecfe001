"""The gates of a model, all of them or a selection."""

from torch import nn

from diffsparse.errors import SparsityError, require_module
from diffsparse.gates.gate import Gate, named_gates
from diffsparse.selection import Selection, select


def chosen_gates(model: nn.Module, only: Selection | None) -> dict[str, Gate]:
    """The gates that `only` chooses, by name; raises where there is none."""
    gates = dict(named_gates(require_module("model", model)))
    if not gates:
        raise SparsityError(
            f"{type(model).__name__} has no gates; call diffsparse.sparsify(model) first, "
            "or put SignedGate, SimplexGate, MatrixGate or a sparse layer into it"
        )
    chosen = select(model, only, gates.values(), "gate")
    return {name: gate for name, gate in gates.items() if gate in chosen}
