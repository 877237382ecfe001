"""Classification: cross entropy with the labels, and with the outputs of a teacher if there is one; accuracy."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.data.dataset import DataSet
from diffsparse.errors import SparsityError
from diffsparse.methods import Sparsifying
from diffsparse.models.factory import make_named
from diffsparse.training.config import Recipe
from diffsparse.training.task import Objective, Task, register_task


@dataclass(eq=False)
class ClassificationObjective:
    """Cross entropy with the labels, and with the outputs of a teacher if there is one; accuracy."""

    label_smoothing: float = 0.0
    teacher: nn.Module | None = None
    alpha: float = 0.4
    temperature: float = 4.0

    headline = "accuracy"
    higher_is_better = True
    sizes = 3
    shows_macs = True

    def loss(self, outputs: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Eq. 18 with a teacher, plain cross entropy without."""
        hard = F.cross_entropy(outputs.float(), targets, label_smoothing=self.label_smoothing)
        if self.teacher is None:
            return hard
        with torch.no_grad():
            teacher_outputs = self.teacher(inputs)
        return (1 - self.alpha) * hard + self.alpha * distillation_loss(outputs, teacher_outputs, self.temperature)

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Summed cross entropy, number of right answers, number of answers."""
        outputs = outputs.float()
        right = (outputs.argmax(1) == targets).sum()
        total = F.cross_entropy(outputs, targets, reduction="sum")
        return torch.stack([total.double(), right.double(), total.new_tensor(len(targets), dtype=torch.double)])

    def figures(self, sums: Tensor) -> dict[str, float]:
        """Mean cross entropy and accuracy."""
        loss, right, count = sums.tolist()
        return {"loss": loss / count, "accuracy": right / count}


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float = 4.0) -> Tensor:
    r"""Divergence of the student from the teacher, both softened (the second term of Eq. 18).

    .. math:: T^2 \, \mathrm{KL}\bigl(\mathrm{softmax}(z_t / T) \,\|\, \mathrm{softmax}(z_s / T)\bigr)

    Both are logits (N, C); the mean is over the batch. The teacher is the target and gets no gradient; as printed in
    the paper the student would be the target. The factor T^2 keeps the gradient's size when the temperature T changes.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[1.0, 2.0, 3.0]])
        >>> distillation_loss(logits, logits).abs().item() < 1e-6
        True
    """
    if student.shape != teacher.shape:
        shapes = f"{tuple(student.shape)} and {tuple(teacher.shape)}"
        raise SparsityError(f"student and teacher must give the same classes, got shapes {shapes}")
    log_student = F.log_softmax(student.float() / temperature, dim=1)
    log_teacher = F.log_softmax(teacher.detach().float() / temperature, dim=1)
    return temperature**2 * F.kl_div(log_student, log_teacher, reduction="batchmean", log_target=True)


class Classification(Task):
    """Images with one label each."""

    def build(self, name: str, keywords: dict[str, Any], data: DataSet, settings: Sparsifying) -> nn.Module:
        """Networks of this package get the number of classes and of input channels."""
        known = {} if ":" in name else {"num_classes": data.num_outputs, "in_channels": data.input_shape[0]}
        return make_named(name, known | keywords)

    def objective(self, recipe: Recipe, teacher: nn.Module | None) -> Objective:
        smoothing, settings = recipe.optimisation.label_smoothing, recipe.distillation
        return ClassificationObjective(smoothing, teacher, settings.alpha, settings.temperature)


register_task("classification", Classification())
