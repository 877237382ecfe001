"""Rectified gradient flow (Eq. 15): a relu that lets a little gradient through where it is off."""

import torch
import torch.nn.functional as F
from torch import Tensor

from diffsparse.errors import SparsityError


def rectified_relu(x: Tensor, elu_alpha: float = 0.1) -> Tensor:
    r"""relu in the forward pass, the gradient of elu in the backward pass (Eq. 15).

    .. math:: y = \max(x, 0), \qquad
              \frac{\partial y}{\partial x} := 1 \text{ if } x > 0 \text{ else } \texttt{elu\_alpha}\, e^{x}

    At exactly `x = 0` the factor is `elu_alpha`. The second derivative is that of elu. Works on any shape and dtype,
    under `torch.compile` and inside `torch.func` transforms.

    Example:
        >>> x = torch.tensor([-1.0, 2.0], requires_grad=True)
        >>> y = rectified_relu(x)
        >>> y.sum().backward()
        >>> y.tolist(), [round(g, 4) for g in x.grad.tolist()]
        ([0.0, 2.0], [0.0368, 1.0])
    """
    if not elu_alpha >= 0:
        raise SparsityError(f"elu_alpha must be a non-negative number, got {elu_alpha}")
    flow = F.elu(x, alpha=elu_alpha)
    # flow - flow.detach() is exactly zero and carries the gradient of elu
    return torch.where(x > 0, x, flow - flow.detach())


def gated_relu(x: Tensor, rgf: float | None) -> Tensor:
    """The thresholding nonlinearity: plain relu, or `rectified_relu` with `elu_alpha=rgf`."""
    return torch.relu(x) if rgf is None else rectified_relu(x, rgf)
