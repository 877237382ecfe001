"""Parameters that are multiplied, and optimisers that follow."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_POWERS = {
    **dict.fromkeys(["momentum_buffer", "exp_avg", "exp_inf", "grad_avg", "prev"], -1),
    **dict.fromkeys(["exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"], -2),
    **dict.fromkeys(["step_size", "ax"], 1),
    "acc_delta": 2,
}
"""How what optimisers keep changes with the scale of a parameter: gradients are divided by what it is multiplied by."""


@torch.no_grad()
def multiply(model: nn.Module, factors: Mapping[str, float]) -> None:
    """Multiply parameters and buffers, by name."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers()) if factors else {}
    for name, factor in factors.items():
        tensors[name].mul_(factor)


def can_follow(optimizers: Iterable[Optimizer]) -> bool:
    """Whether all that these optimisers keep of parameters is known, so that it can be multiplied, too."""
    states = (state.items() for optimizer in optimizers for state in optimizer.state.values())
    return all(
        key in _POWERS or not isinstance(kept, Tensor) or kept.dim() == 0 for state in states for key, kept in state
    )


def multiply_states(optimizers: Iterable[Optimizer], model: nn.Module, factors: Mapping[str, float]) -> None:
    """Change what optimisers keep of parameters that were multiplied."""
    parameters = dict(model.named_parameters()) if factors else {}
    for optimizer in optimizers:
        for name in factors.keys() & parameters.keys():
            state: dict[str, Any] = optimizer.state.get(parameters[name], {})
            for key, kept in state.items():
                # that of RMSprop is divided by the root of a square
                has_no_unit = key == "momentum_buffer" and "square_avg" in state
                if isinstance(kept, Tensor) and kept.dim() and not has_no_unit:
                    kept.mul_(factors[name] ** _POWERS[key])
