"""A loss that is NaN, infinite or far too large: where it came from."""

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError

EXPLODED = 1e4
"""A mean loss this many times that of the first steps counts as exploded."""


class DivergenceError(SparsityError):
    """Training diverged to NaN or infinity; the message names the epoch, the layer and the last good checkpoint."""


def find_divergence(model: nn.Module, inputs: Tensor) -> str:
    """The layer that diverges on `inputs`: the first with an output or a parameter that is not finite, else the one
    with the largest output."""
    found: list[str] = []
    sizes: dict[str, float] = {}
    names = {module: name for name, module in model.named_modules()}

    def look(module: nn.Module, _args: object, output: object) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and not list(module.children()):
            largest = float(output.detach().abs().max()) if output.numel() else 0.0
            sizes[names[module]] = largest
            if not largest < float("inf"):
                found.append(names[module])

    handles = [module.register_forward_hook(look) for module in names]
    try:
        with torch.no_grad():
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    if (name := non_finite_parameter(model)) is not None:
        return f"parameter '{name}' is not finite"
    if found:
        return f"the output of layer '{found[0]}' is not finite"
    largest = max(sizes, key=lambda name: sizes[name], default="")
    return f"the largest output, {sizes.get(largest, 0):.3g}, is that of layer '{largest}'"


def non_finite_parameter(model: nn.Module) -> str | None:
    """Name of the first parameter that is not finite; None if all are."""
    broken = (name for name, parameter in model.named_parameters() if not bool(torch.isfinite(parameter).all()))
    return next(broken, None)
