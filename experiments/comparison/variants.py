"""Our method with something changed: what helps, and what does not."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from comparison.loop import Training
from diffsparse.training.classification import distillation_loss


class Teacher(ABC):
    """A network whose answers count as much as the labels do."""

    @abstractmethod
    def answers(self, x: Tensor) -> Tensor | None:
        """Logits; None if there is nothing to be learned from them yet."""

    def step_done(self, shrank: bool) -> None:  # noqa: B027
        """A step was made, in which the network became small, or not."""

    def loss(self, outputs: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Half labels, half answers."""
        with torch.no_grad():
            answers = self.answers(x)
        hard = F.cross_entropy(outputs, y)
        return hard if answers is None else 0.5 * hard + 0.5 * distillation_loss(outputs, answers)


class WholeNetwork(Teacher):
    """The plain network of the same seed, trained to the end."""

    def __init__(self, whole: Callable[[], nn.Module], training: Training, aim: ds.Budget) -> None:
        self.model = whole().eval()

    def answers(self, x: Tensor) -> Tensor:
        """Of the trained network."""
        logits: Tensor = self.model(x)
        return logits


class OwnAverage(Teacher):
    """The moving average of the network in training, once it is small."""

    def __init__(self, whole: Callable[[], nn.Module], training: Training, aim: ds.Budget) -> None:
        self.training, self.aim, self.average = training, aim, ds.MovingAverage(training.model, decay=0.99)

    def step_done(self, shrank: bool) -> None:
        """The average goes on."""
        if shrank:
            self.average.follow(self.aim.small)
        self.average.update(self.training.model)

    def answers(self, x: Tensor) -> Tensor | None:
        """Of the average."""
        return self.average.model.eval()(x) if self.aim.finished else None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Our method, perhaps with something changed."""

    start: float = 1.0
    """Where gates start."""
    rgf: float | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Of the budget."""
    epochs: int | None = None
    """If not those of the setting."""
    teacher: Callable[[Callable[[], nn.Module], Training, ds.Budget], Teacher] | None = None
    """Makes a network to learn from, given what trains the whole network, the training and its budget."""


OURS = {
    "budget": Variant(),
    "budget, start=0.5": Variant(start=0.5),
    "budget, due=0.3": Variant(options={"due": 0.3}),
    "budget, due=0.7": Variant(options={"due": 0.7}),
    "budget, gates until the end": Variant(options={"due": 1.0}),
    "budget, taught by the whole network": Variant(teacher=WholeNetwork),
    "budget, taught by its average": Variant(teacher=OwnAverage),
    "budget, 12 epochs": Variant(epochs=12),
    "budget, no pressure": Variant(options={"strength": 0.0}),
    "budget, unweighted": Variant(options={"weighted": False}),
    "budget, three shrinks": Variant(options={"shrinks": 3}),
    "budget, l1 instead of thresholds": Variant(options={"pressure": ds.L1()}),
    "budget, rgf": Variant(rgf=0.1),
}
