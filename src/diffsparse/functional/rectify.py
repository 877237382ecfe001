"""Rectified gradient flow (Eq. 15): a relu that lets a little gradient through where it is off."""

from typing import Any

import torch
from torch import Tensor

from diffsparse.errors import require_floats, require_number


class _RectifiedRelu(torch.autograd.Function):
    # A function of its own, not elu(x) - elu(x).detach(): a compiler that fuses multiply and add would leave a residue
    # where the forward pass must be exactly zero.
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, elu_alpha: float) -> Tensor:
        return torch.relu(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        x, ctx.elu_alpha = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grads[0] * torch.where(x > 0, 1.0, ctx.elu_alpha * x.clamp(max=0).exp()), None


def rectified_relu(x: Tensor, elu_alpha: float = 0.1) -> Tensor:
    r"""relu in the forward pass, the gradient of elu in the backward pass (Eq. 15).

    .. math:: y = \max(x, 0), \qquad
              \frac{\partial y}{\partial x} := 1 \text{ if } x > 0 \text{ else } \texttt{elu\_alpha}\, e^{x}

    At exactly `x = 0` the factor is `elu_alpha`. The second derivative is that of elu. Works on any shape and
    floating-point dtype, under `torch.compile` and inside `torch.func` transforms.

    Example:
        >>> x = torch.tensor([-1.0, 2.0], requires_grad=True)
        >>> y = rectified_relu(x)
        >>> y.sum().backward()
        >>> y.tolist(), [round(g, 4) for g in x.grad.tolist()]
        ([0.0, 2.0], [0.0368, 1.0])
    """
    require_floats("x", x)
    require_number("elu_alpha", elu_alpha, low=0)
    rectified: Tensor = _RectifiedRelu.apply(x, elu_alpha)  # type: ignore[no-untyped-call]
    return rectified


def gated_relu(x: Tensor, rgf: float | None) -> Tensor:
    """The thresholding nonlinearity: plain relu, or `rectified_relu` with `elu_alpha=rgf`."""
    return torch.relu(x) if rgf is None else rectified_relu(x, rgf)
