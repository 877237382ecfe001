"""A small model learns faster if some of its tensors are multiplied; optimisers follow."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from diffsparse.budget.free_weights import halve_free_weights
from diffsparse.budget.unit_scales import to_unit_scales
from diffsparse.example import Example

_POWERS = {
    **dict.fromkeys(["momentum_buffer", "exp_avg", "exp_inf", "grad_avg", "prev"], -1),
    **dict.fromkeys(["exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"], -2),
    **dict.fromkeys(["step_size", "ax"], 1),
    "acc_delta": 2,
}
"""How what optimisers keep changes with the scale of a parameter: gradients are divided by what it is multiplied by."""


def rescale(model: nn.Module, example: Example, norms: Collection[str], *, is_chain: bool) -> dict[str, float]:
    """Make a small model learn faster, without changing what it computes.

    Args:
        model: to be changed.
        example: of its inputs.
        norms: batch norms that had gates, by name.
        is_chain: whether all layers are in series.

    Returns:
        What its parameters and buffers were multiplied by, by name.
    """
    factors = to_unit_scales(model, example, norms)
    for name, factor in halve_free_weights(model, example).items() if is_chain else ():
        factors[name] = factors.get(name, 1.0) * factor
    return factors


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
