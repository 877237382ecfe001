"""What a kind of data needs: its objective, its networks and its checks of options."""

from abc import ABC, abstractmethod
from typing import Any, Protocol

from torch import Tensor, nn

from diffsparse.data.dataset import DataSet
from diffsparse.methods import Sparsifying
from diffsparse.registry import Registry
from diffsparse.training.config import Recipe


class Objective(Protocol):
    """A loss to minimise, and sums over a data set from which figures are made."""

    headline: str
    """The figure that tells which of two networks is better."""
    higher_is_better: bool
    sizes: int
    """How many sums there are."""
    shows_macs: bool
    """Whether MACs of the compact network are worth counting after every epoch."""

    def loss(self, outputs: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of a batch, with gradients."""

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """A vector that is added up over batches and processes."""

    def figures(self, sums: Tensor) -> dict[str, float]:
        """Figures from the added vector."""


class Task(ABC):
    """One kind of learning problem. A data set names its task (`DataSet.task`), and the training command asks it."""

    def check(self, recipe: Recipe) -> None:  # noqa: B027
        """Raise if an option has no meaning for this task."""

    @abstractmethod
    def build(self, name: str, keywords: dict[str, Any], data: DataSet, settings: Sparsifying) -> nn.Module:
        """A fresh network called `name`; `keywords` are the user's arguments for it."""

    @abstractmethod
    def objective(self, recipe: Recipe, teacher: nn.Module | None) -> Objective:
        """What is minimised and reported; a task without teachers refuses them in `check`."""


TASKS = Registry[Task]("task")
register_task = TASKS.add
"""Let data sets name a task."""
