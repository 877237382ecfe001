"""What is minimised and what is reported."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.training.distillation import distillation_loss


class Objective(Protocol):
    """A loss to minimise, and sums over a data set from which figures are made."""

    headline: str
    """The figure that tells which of two networks is better."""
    higher_is_better: bool
    """Whether more of it is better."""
    sizes: int
    """How many sums there are."""
    shows_macs: bool
    """Whether MACs of the compact network are worth counting after every epoch."""

    def loss(self, outputs: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of a batch, with gradients."""

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """A vector that is added up over batches and processes."""

    def figures(self, sums: Tensor) -> dict[str, float]:
        """What the added vector says."""


class Classification:
    """Cross entropy with the labels and, if there is a teacher, with what it says; accuracy."""

    headline = "accuracy"
    higher_is_better = True
    sizes = 3
    shows_macs = True

    def __init__(
        self,
        label_smoothing: float = 0.0,
        teacher: nn.Module | None = None,
        alpha: float = 0.4,
        temperature: float = 4.0,
    ) -> None:
        self.label_smoothing, self.teacher = label_smoothing, teacher
        self.alpha, self.temperature = alpha, temperature

    def loss(self, outputs: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Eq. 18 with a teacher, plain cross entropy without."""
        hard = F.cross_entropy(outputs.float(), targets, label_smoothing=self.label_smoothing)
        if self.teacher is None:
            return hard
        with torch.no_grad():
            wisdom = self.teacher(inputs)
        return (1 - self.alpha) * hard + self.alpha * distillation_loss(outputs, wisdom, self.temperature)

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Summed cross entropy, right answers, answers."""
        outputs = outputs.float()
        right = (outputs.argmax(1) == targets).sum()
        total = F.cross_entropy(outputs, targets, reduction="sum")
        return torch.stack([total.double(), right.double(), total.new_tensor(len(targets), dtype=torch.double)])

    def figures(self, sums: Tensor) -> dict[str, float]:
        """Mean cross entropy and share of right answers."""
        loss, right, count = sums.tolist()
        return {"loss": loss / count, "accuracy": right / count}
