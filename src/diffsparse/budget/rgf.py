"""A warning for rectified gradient flow where it has no effect."""

import warnings
from collections.abc import Mapping

from torch import nn

from diffsparse.compaction.materialise import materialise
from diffsparse.compaction.recording import recorded
from diffsparse.errors import SparsityWarning
from diffsparse.example import Example
from diffsparse.gates import Gate
from diffsparse.module_tree import lies_in

_FLAT_BELOW_ZERO = frozenset({"relu", "relu6", "hardtanh", "threshold"})


def warn_of_idle_rgf(model: nn.Module, example: Example, gates: Mapping[str, Gate]) -> None:
    """Warn of gates with rectified gradient flow whose output goes only to ReLUs: no gradient comes back at zero."""
    owners = {name.rpartition(".")[0] for name, gate in gates.items() if gate.rgf is not None}
    if not owners:
        return
    graph, _ = recorded(materialise(model).eval(), example)
    outputs = {id(call.output): call.name for call in graph.calls if lies_in(call.name, owners)}
    readers: dict[str, set[str]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if id(value) in outputs:
                readers.setdefault(outputs[id(value)], set()).add(node.op.rstrip("_"))
    idle = [name for name, ops in readers.items() if ops <= _FLAT_BELOW_ZERO]
    if idle:
        more = f" and {len(idle) - 1} more" if len(idle) > 1 else ""
        warnings.warn(
            f"rectified gradient flow has no effect in '{idle[0]}'{more}: a closed channel is 0, and the ReLU behind "
            "it passes no gradient there; leave rgf out",
            SparsityWarning,
            stacklevel=4,
        )
