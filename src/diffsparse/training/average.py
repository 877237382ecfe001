"""An exponential moving average of a model."""

import copy

import torch
from torch import nn


class MovingAverage:
    """A copy of a model whose numbers follow those of the original slowly.

    The decay starts low and rises to its value, min(decay, (1 + t) / (10 + t)) after t updates, so that the random
    start is soon forgotten. Whole numbers (counters) are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model)
        self.decay, self.updates = decay, 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the numbers of `model`."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        for mean, value in zip(self.model.state_dict().values(), model.state_dict().values(), strict=True):
            if mean.is_floating_point():
                mean.lerp_(value, 1 - decay)
            else:
                mean.copy_(value)
