"""How good a model is."""

import torch
from torch import nn

from diffsparse.data.dataset import Part
from diffsparse.training.processes import Processes
from diffsparse.training.task import Objective


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
