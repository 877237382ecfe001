"""The parameters of a gated model, sorted for the optimiser."""

import warnings
from typing import Any

import torch
from torch import nn

from diffsparse.errors import SparsityWarning, require_module, require_number
from diffsparse.gates import named_gates


def parameter_groups(
    model: nn.Module,
    weight_decay: float | None = None,
    gate_weight_decay: float = 0.0,
    *,
    gate_lr: float | None = None,
) -> list[dict[str, Any]]:
    """Two parameter groups for any optimiser: ordinary weights, and `alpha` and `beta` of every gate.

    Weight decay on `beta` is not harmless: beta starts well below zero, decay pulls it towards zero and so *raises* the
    threshold, which drops entries without the loss. Decay on `alpha` alone only rescales a gate. The default leaves
    gates alone; the paper's channel experiments use a small decay on both.

    Args:
        model: the gated model; frozen parameters are left out, shared ones come once.
        weight_decay: for everything that is not a gate; by default that of the optimiser.
        gate_weight_decay: for `alpha` and `beta`, whatever that of the optimiser is.
        gate_lr: learning rate of gates; by default the optimiser's, as for everything else. Adam moves each number by
            about the learning rate per step, and gates have farther to go than weights: five times its rate suits them.

    Example:
        >>> import diffsparse as ds
        >>> model = ds.sparsify(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)))
        >>> optimizer = torch.optim.SGD(parameter_groups(model), lr=0.1, weight_decay=1e-4)
        >>> [(g["name"], len(g["params"]), g["weight_decay"]) for g in optimizer.param_groups]
        [('weights', 3, 0.0001), ('gates', 2, 0.0)]
    """
    require_number("gate_weight_decay", gate_weight_decay, low=0)
    gated = {parameter for _, gate in named_gates(require_module("model", model)) for parameter in gate.parameters()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"name": "weights", "params": [p for p in trained if p not in gated]},
        {"name": "gates", "params": [p for p in trained if p in gated], "weight_decay": gate_weight_decay},
    ]
    if weight_decay is not None:
        groups[0]["weight_decay"] = require_number("weight_decay", weight_decay, low=0)
    if gate_lr is not None:
        groups[1]["lr"] = require_number("gate_lr", gate_lr, above=0)
    return [group for group in groups if group["params"]]


def warn_of_idle_gates(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    """Warn once if a gate of `model` that requires gradients is in none of the optimisers: it would never move."""
    held = _held(optimizers)
    idle = [
        name or type(gate).__name__
        for name, gate in named_gates(model)
        if any(parameter.requires_grad and id(parameter) not in held for parameter in gate.parameters())
    ]
    if idle:
        warnings.warn(
            f"gate {_first_of(idle)} is in no parameter group: the optimiser was probably built before sparsify, and "
            "its steps leave the gate as it is. Build it afterwards, from parameter_groups(model), or freeze the gate",
            SparsityWarning,
            stacklevel=3,
        )


def warn_of_forgotten_parameters(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    """Warn if a parameter that gets gradients is in none of the optimisers, which become small with the model."""
    known = _held(optimizers) | {id(parameter) for _, gate in named_gates(model) for parameter in gate.parameters()}
    lost = [name for name, p in model.named_parameters() if p.grad is not None and id(p) not in known]
    if lost:
        warnings.warn(
            f"{_first_of(lost)} gets gradients, but no optimiser that was given holds it. An optimiser that is not "
            "given goes on with the parameters of the large network: give all of them, step(first, second)",
            SparsityWarning,
            stacklevel=3,
        )


def _first_of(names: list[str]) -> str:
    return f"'{names[0]}'" + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")


def _held(optimizers: tuple[torch.optim.Optimizer, ...]) -> set[int]:
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return {id(parameter) for group in groups for parameter in group["params"]}
