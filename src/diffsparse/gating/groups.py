"""Parameters of a gated model sorted for an optimiser."""

from typing import Any

from torch import nn

from diffsparse.errors import require_module, require_number
from diffsparse.gates import named_gates


def parameter_groups(
    model: nn.Module, weight_decay: float = 1e-4, gate_weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Two parameter groups for any optimiser: ordinary weights, and `alpha` and `beta` of every gate.

    Weight decay on `beta` is not harmless: beta starts well below zero, decay pulls it towards zero and so *raises*
    the threshold, which drops entries with no help from the loss. Decay on `alpha` alone only rescales a gate. The
    default leaves gates alone; the paper's channel experiments use a small decay on both.

    Each group carries its own `weight_decay`, which wins over the optimiser's argument of that name: give it here.

    Args:
        model: the gated model; frozen parameters are left out, shared ones come once.
        weight_decay: for everything that is not a gate.
        gate_weight_decay: for `alpha` and `beta`.

    Example:
        >>> import diffsparse as ds
        >>> model = ds.sparsify(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)))
        >>> [(g["name"], len(g["params"]), g["weight_decay"]) for g in parameter_groups(model)]
        [('weights', 3, 0.0001), ('gates', 2, 0.0)]
    """
    for name, value in {"weight_decay": weight_decay, "gate_weight_decay": gate_weight_decay}.items():
        require_number(name, value, low=0)
    gated = {parameter for _, gate in named_gates(require_module("model", model)) for parameter in gate.parameters()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"name": "weights", "params": [p for p in trained if p not in gated], "weight_decay": weight_decay},
        {"name": "gates", "params": [p for p in trained if p in gated], "weight_decay": gate_weight_decay},
    ]
    return [group for group in groups if group["params"]]
