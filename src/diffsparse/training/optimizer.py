"""The optimiser of a run and its learning rate at every step."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from diffsparse.errors import SparsityError
from diffsparse.gating import parameter_groups
from diffsparse.penalties.strength import Pace
from diffsparse.training.config import Optimisation


def make_optimizer(model: nn.Module, settings: Optimisation) -> Optimizer:
    """The optimiser over weights and gates, each with its own weight decay."""
    groups = parameter_groups(model, settings.weight_decay, settings.gate_weight_decay)
    if not groups:
        raise SparsityError(f"{type(model).__name__} has no parameters to train")
    if settings.adaptive:
        kind = AdamW if settings.optimizer == "adamw" else Adam
        return kind(groups, lr=settings.peak_rate, betas=(settings.momentum, 0.999))
    nesterov = settings.nesterov and settings.momentum > 0
    return SGD(groups, lr=settings.peak_rate, momentum=settings.momentum, nesterov=nesterov)


@torch.no_grad()
def adopt_layout(optimizer: Optimizer) -> None:
    """Give the state of each parameter its memory layout, which affects rounding."""
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


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

    def total(self) -> float:
        """The sum over all steps."""
        return math.fsum(self.at(step) for step in range(self.epochs * self.steps))

    def at(self, step: int) -> float:
        """Learning rate of the given step, counted from 0 over the whole run."""
        peak = self.settings.peak_rate
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


def gate_pace(settings: Optimisation, epochs: int, steps: int) -> Pace:
    """How far a run of so many epochs of so many steps can move gates."""
    total = settings.gate_rate * LearningRate(settings=settings, epochs=epochs, steps=steps).total()
    # a cosine over a single step ends before it has begun
    return Pace(
        total_rate=max(total, 1e-12),
        momentum=settings.momentum,
        adaptive=settings.adaptive,
        decays=settings.gate_weight_decay > 0,
    )
