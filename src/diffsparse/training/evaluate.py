"""How good a model is, and which of its layers diverges."""

import torch
from torch import Tensor, nn

from diffsparse.data.dataset import Part
from diffsparse.errors import SparsityError
from diffsparse.training.processes import Processes
from diffsparse.training.task import Objective


@torch.no_grad()
def evaluate(
    model: nn.Module, part: Part, objective: Objective, batch_size: int, processes: Processes
) -> dict[str, float]:
    """Figures of `model` in eval mode over all of `part`; each process evaluates its share."""
    training = model.training
    model.eval()
    total = torch.zeros(objective.sizes, dtype=torch.double, device=processes.device)
    for inputs, targets in part.in_order(batch_size, share=processes.share):
        inputs, targets = inputs.to(processes.device), targets.to(processes.device)
        total = total + objective.sums(model(inputs), targets)
    model.train(training)
    return objective.figures(processes.added(total))


class DivergenceError(SparsityError):
    """Training diverged to NaN or infinity; the message names the epoch, the layer and the last good checkpoint."""


@torch.no_grad()
def find_divergence(model: nn.Module, inputs: Tensor) -> str:
    """The first parameter or layer output that is not finite on `inputs`, else the largest output, in words."""
    largest: dict[str, float] = {}
    names = {module: name for name, module in model.named_modules() if not list(module.children())}

    def look(module: nn.Module, _args: object, output: object) -> None:
        # of several calls the first that is not finite counts
        finite = largest.get(names[module], 0.0) < float("inf")
        if finite and isinstance(output, Tensor) and output.is_floating_point():
            largest[names[module]] = float(output.abs().max()) if output.numel() else 0.0

    handles = [module.register_forward_hook(look) for module in names]
    try:
        model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    if (name := non_finite_parameter(model)) is not None:
        return f"parameter '{name}' is not finite"
    if (name := next((name for name, size in largest.items() if not size < float("inf")), None)) is not None:
        return f"the output of layer '{name}' is not finite"
    name = max(largest, key=lambda name: largest[name], default="")
    return f"the largest output, {largest.get(name, 0):.3g}, is that of layer '{name}'"


def non_finite_parameter(model: nn.Module) -> str | None:
    """Name of the first parameter that is not finite; None if all are."""
    broken = (name for name, parameter in model.named_parameters() if not bool(torch.isfinite(parameter).all()))
    return next(broken, None)
