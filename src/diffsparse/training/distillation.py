"""The teacher's term of the loss."""

import torch.nn.functional as F
from torch import Tensor

from diffsparse.errors import SparsityError


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float = 4.0) -> Tensor:
    r"""Divergence of the student from the teacher, both softened (the second term of Eq. 18).

    .. math:: T^2 \, \mathrm{KL}\bigl(\mathrm{softmax}(z_t / T) \,\|\, \mathrm{softmax}(z_s / T)\bigr)

    The teacher is the target and gets no gradient; as printed in the paper the student would be the target. The factor
    T^2 keeps the gradient's size when T changes. The mean is over the batch.

    Args:
        student: logits (N, C).
        teacher: logits (N, C).
        temperature: T.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[1.0, 2.0, 3.0]])
        >>> distillation_loss(logits, logits).abs().item() < 1e-6
        True
    """
    if student.shape != teacher.shape:
        raise SparsityError(
            f"student and teacher must give the same classes, got shapes {tuple(student.shape)} and "
            f"{tuple(teacher.shape)}"
        )
    log_student = F.log_softmax(student.float() / temperature, dim=1)
    log_teacher = F.log_softmax(teacher.detach().float() / temperature, dim=1)
    return temperature**2 * F.kl_div(log_student, log_teacher, reduction="batchmean", log_target=True)
