"""The optimiser of a run and its learning rate at every step."""

import math
from dataclasses import dataclass

from torch import nn
from torch.optim import SGD, Adam, Optimizer

from diffsparse.errors import SparsityError
from diffsparse.gating import parameter_groups
from diffsparse.training.config import Optimisation


def make_optimizer(model: nn.Module, settings: Optimisation) -> Optimizer:
    """SGD or Adam over weights and gates, each with its own weight decay."""
    groups = parameter_groups(model, settings.weight_decay, settings.gate_weight_decay)
    if not groups:
        raise SparsityError(f"{type(model).__name__} has no parameters to train")
    if settings.optimizer == "adam":
        return Adam(groups, lr=settings.learning_rate, betas=(settings.momentum, 0.999))
    nesterov = settings.nesterov and settings.momentum > 0
    return SGD(groups, lr=settings.learning_rate, momentum=settings.momentum, nesterov=nesterov)


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """The learning rate as a function of the step alone, so that a run can be continued anywhere.

    Example:
        >>> rate = LearningRate(settings=Optimisation(learning_rate=1.0, warmup_epochs=1), epochs=5, steps=2)
        >>> [round(rate.at(step), 2) for step in (0, 1, 2, 6, 9)]
        [0.5, 1.0, 1.0, 0.5, 0.04]
    """

    settings: Optimisation
    epochs: int
    steps: int
    """Steps per epoch."""

    def at(self, step: int) -> float:
        """Learning rate of the given step, counted from 0 over the whole run."""
        peak = self.settings.learning_rate
        warmup = round(self.settings.warmup_epochs * self.steps)
        if step < warmup:
            return peak * (step + 1) / warmup
        total = self.epochs * self.steps
        if self.settings.schedule == "cosine":
            return peak * (1 + math.cos(math.pi * (step - warmup) / max(total - warmup, 1))) / 2
        if self.settings.schedule == "steps":
            passed = sum(step >= round(share * self.epochs) * self.steps for share in self.settings.milestones)
            return peak * self.settings.factor**passed
        return peak
