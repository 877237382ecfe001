"""The learning rate as a function of the step alone, so that a run can be continued anywhere."""

import math
from dataclasses import dataclass

from diffsparse.training.config import Optimisation


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """Learning rate at each step of a run.

    Example:
        >>> rate = LearningRate(settings=Optimisation(learning_rate=1.0, warmup_epochs=1), epochs=5, steps=2)
        >>> [round(rate.at(step), 2) for step in (0, 1, 2, 6, 9)]
        [0.5, 1.0, 1.0, 0.5, 0.04]
    """

    settings: Optimisation
    """Peak, schedule and warm-up."""
    epochs: int
    """Length of the run."""
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
