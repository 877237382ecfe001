"""How good a model is, and what it would cost if it were compacted now."""

import warnings

import torch
from torch import Tensor, nn

from diffsparse.compaction import compact
from diffsparse.data.part import Part
from diffsparse.errors import SparsityError, SparsityWarning
from diffsparse.training.objective import Objective
from diffsparse.training.processes import Processes
from diffsparse.wiring import wiring_cost
from diffsparse.wiring.report import learned_wiring


@torch.no_grad()
def evaluate(
    model: nn.Module, part: Part, objective: Objective, batch_size: int, processes: Processes
) -> dict[str, float]:
    """Figures of `model` in eval mode over all of `part`, each process taking its share."""
    training = model.training
    model.eval()
    total = torch.zeros(objective.sizes, dtype=torch.double, device=processes.device)
    for inputs, targets in part.in_order(batch_size, share=processes.share):
        inputs, targets = inputs.to(processes.device), targets.to(processes.device)
        total = total + objective.sums(model(inputs), targets)
    model.train(training)
    return objective.figures(processes.added(total))


def live_macs(model: nn.Module, example: Tensor) -> int | None:
    """MACs of one input through the compact form of `model`, or the live graph if it is wired; None if it has none."""
    graph = learned_wiring(model)
    if graph is not None:
        return wiring_cost(graph, example.shape[-1], recursive=True).mult_adds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SparsityWarning)
        try:
            return compact(model, example).after.macs
        except SparsityError:
            return None
