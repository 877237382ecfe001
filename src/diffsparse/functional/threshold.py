"""Thresholds that make exact zeros: gates from free parameters (Eq. 9-12, 15) and proximal steps (Eq. 3, 5, 7)."""

from typing import Any

import torch
from torch import Tensor

from diffsparse.errors import SparsityError, require_floats, require_number
from diffsparse.functional.groups import Dims, align_beta, group_dims, in_float32


class _RectifiedRelu(torch.autograd.Function):
    # Not elu(x) - elu(x).detach(): a compiler that fuses multiply and add would leave a residue instead of exact zeros.
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
    r"""Rectified gradient flow (Eq. 15): relu in the forward pass, the gradient of elu in the backward pass.

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
    """Plain relu, or `rectified_relu` with `elu_alpha=rgf`."""
    return torch.relu(x) if rgf is None else rectified_relu(x, rgf)


def shrink(
    x: Tensor, threshold: Tensor | float, rgf: float | None = None, *, magnitude: Tensor | None = None
) -> Tensor:
    """sign(x) * relu(|x| - threshold), as in Eq. 3, 7 and 12; pass `magnitude` if |x| is already computed."""
    return x.sign() * gated_relu((x.abs() if magnitude is None else magnitude) - threshold, rgf)


def signed_threshold(alpha: Tensor, beta: Tensor, dim: Dims = -1, *, rgf: float | None = None) -> Tensor:
    r"""The signed gate (Eq. 12).

    .. math:: a_i = \mathrm{sign}(\alpha_i)\,\bigl(|\alpha_i| - \sigma(\beta)\,\|\alpha\|_1\bigr)_+

    Args:
        alpha: free parameters of any shape; entries along `dim` compete with each other.
        beta: one free scalar per group (the shape of `alpha` without `dim`), or one scalar for all groups.
        dim: the dimension, or tuple of dimensions, of one competition group.
        rgf: `elu_alpha` of rectified gradient flow (Eq. 15; the paper uses 0.1), or None for plain relu.

    Returns a tensor like `alpha`. Each group has fewer than `1 / sigmoid(beta)` non-zero entries.

    Edges: an all-dropped group gives zeros and, without `rgf`, zero gradients. A group of one entry is
    `alpha * (1 - sigmoid(beta))` and drops only when `sigmoid(beta)` rounds to 1. An `alpha` of exactly 0 stays 0 and
    gets no gradient, even with `rgf`. A dropped entry still gets a gradient through the norm of its group.
    Half-precision input is computed in float32 and returned in its own dtype.

    Example:
        >>> alpha = torch.tensor([1.0, -0.8, 0.1])
        >>> signed_threshold(alpha, torch.tensor(-2.0))
        tensor([ 0.7735, -0.5735,  0.0000])
    """
    dims = group_dims(alpha, dim)
    x = in_float32(alpha)
    fraction = in_float32(align_beta(beta, alpha, dims)).sigmoid()
    magnitude = x.abs()
    return shrink(x, fraction * magnitude.sum(dims, keepdim=True), rgf, magnitude=magnitude).to(alpha.dtype)


def simplex_threshold(alpha: Tensor, beta: Tensor, dim: Dims = -1, *, rgf: float | None = None) -> Tensor:
    r"""The non-negative gate that sums to one (Eq. 9-11).

    .. math:: \gamma_i = e^{\alpha_i},\quad
              \tilde\gamma_i = (\gamma_i - \sigma(\beta)\,\|\gamma\|_1)_+,\quad
              a_i = \tilde\gamma_i / \textstyle\sum_j \tilde\gamma_j

    Computed from `p = softmax(alpha)` as `(p - sigmoid(beta))_+` divided by its sum, which is the same and cannot
    overflow. So with `rgf` the elu sees `p - sigmoid(beta)`, the distance to the threshold relative to the group's sum.

    The arguments are those of `signed_threshold`. Returns a tensor like `alpha`; each group sums to 1, or is all zero
    if every entry is below the threshold.

    Edges: an all-dropped group gives zeros and finite gradients (zero without `rgf`). A group of one entry is 1
    until `sigmoid(beta)` rounds to 1. Half-precision input is computed in float32.

    Example:
        >>> simplex_threshold(torch.tensor([0.0, 0.0, -3.0]), torch.tensor(-2.0)).tolist()
        [0.5, 0.5, 0.0]
    """
    dims = group_dims(alpha, dim)
    x = in_float32(alpha)
    weights = (x - x.logsumexp(dims, keepdim=True)).exp()
    fraction = in_float32(align_beta(beta, alpha, dims)).sigmoid()
    kept = gated_relu(weights - fraction, rgf)
    total = kept.sum(dims, keepdim=True)
    return (kept / torch.where(total > 0, total, 1.0)).to(alpha.dtype)


def matrix_threshold(alpha: Tensor, beta_row: Tensor, beta_col: Tensor, *, rgf: float | None = None) -> Tensor:
    r"""Row and column competition for an adjacency matrix, not yet normalised (section "Learning Sparse Affinity").

    .. math:: \tilde A_{ij} = \bigl(\gamma_{ij} - \sigma(\beta^r_i)\,\|\gamma_{i:}\|_1
              - \sigma(\beta^c_j)\,\|\gamma_{:j}\|_1\bigr)_+, \qquad \gamma_{ij} = e^{\alpha_{ij}}

    Args:
        alpha: free parameters of shape (..., n, m).
        beta_row: one free scalar per row, shape (..., n), or one scalar.
        beta_col: one free scalar per column, shape (..., m), or one scalar.
        rgf: `elu_alpha` of rectified gradient flow, or None for plain relu.

    Returns a non-negative tensor like `alpha`.

    Edges: a row or column whose entries are all dropped is zero and has finite gradients; if everything is dropped,
    the gradients are zero without `rgf`. The values scale with `exp(alpha)`, so an `alpha` above 88 overflows
    float32. Half-precision input is computed in float32.

    Example:
        >>> alpha = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> b = torch.full((2,), -2.0)
        >>> matrix_threshold(alpha, b, b)
        tensor([[5.3891, 0.0000],
                [0.0000, 5.3891]])
    """
    require_floats("alpha", alpha)
    if alpha.dim() < 2:
        raise SparsityError(f"matrix_threshold needs alpha of shape (..., rows, columns), got {tuple(alpha.shape)}")
    row, col = group_dims(alpha, -1), group_dims(alpha, -2)
    gamma = in_float32(alpha).exp()
    row_part = in_float32(align_beta(beta_row, alpha, row, "beta_row")).sigmoid() * gamma.sum(row, keepdim=True)
    col_part = in_float32(align_beta(beta_col, alpha, col, "beta_col")).sigmoid() * gamma.sum(col, keepdim=True)
    return gated_relu(gamma - row_part - col_part, rgf).to(alpha.dtype)


def proximal_l1(w: Tensor, step: float) -> Tensor:
    r"""Soft threshold (Eq. 3): :math:`\mathrm{sign}(w_i)(|w_i| - \eta\lambda)_+` with `step` = eta * lambda.

    Example:
        >>> proximal_l1(torch.tensor([1.0, -0.25]), 0.5).tolist()
        [0.5, -0.0]
    """
    _check(w, step)
    return shrink(w, step)


def proximal_group_l21(w: Tensor, step: float, dim: Dims = -1) -> Tensor:
    r"""Group soft threshold (Eq. 5): :math:`\bigl((\|w_g\|_2 - \eta\lambda)/\|w_g\|_2\bigr)_+\, w_{g,i}`.

    Entries along `dim` form one group and live or die together. A zero group stays zero.

    Example:
        >>> proximal_group_l21(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0)
        tensor([[2.4000, 3.2000],
                [0.0000, 0.0000]])
    """
    _check(w, step)
    norm = torch.linalg.vector_norm(w, dim=group_dims(w, dim, "w"), keepdim=True)
    return torch.relu(norm - step) / torch.where(norm > 0, norm, 1.0) * w


def proximal_exclusive_l12(w: Tensor, step: float, dim: Dims = -1) -> Tensor:
    r"""Exclusive lasso (Eq. 7): :math:`\mathrm{sign}(w_{g,i})(|w_{g,i}| - \eta\lambda\|w_g\|_1)_+`.

    Entries along `dim` form one group; the norm is taken before the step.

    Example:
        >>> proximal_exclusive_l12(torch.tensor([1.0, -0.5, 0.1]), 0.125)
        tensor([ 0.8000, -0.3000,  0.0000])
    """
    _check(w, step)
    magnitude = w.abs()
    return shrink(w, step * magnitude.sum(group_dims(w, dim, "w"), keepdim=True), magnitude=magnitude)


def _check(w: Tensor, step: float) -> None:
    require_floats("w", w)
    require_number("a proximal step (learning rate times strength)", step, low=0)
