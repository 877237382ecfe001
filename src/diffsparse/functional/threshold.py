"""Gates as pure functions: free parameters in, values with exact zeros out (Eq. 9-12)."""

import torch
from torch import Tensor

from diffsparse.errors import SparsityError, require_floats
from diffsparse.functional._groups import Dims, align_beta, group_dims, in_float32
from diffsparse.functional.rectify import gated_relu
from diffsparse.functional.shrink import shrink


def signed_threshold(alpha: Tensor, beta: Tensor, dim: Dims = -1, *, rgf: float | None = None) -> Tensor:
    r"""The signed gate (Eq. 12).

    .. math:: a_i = \mathrm{sign}(\alpha_i)\,\bigl(|\alpha_i| - \sigma(\beta)\,\|\alpha\|_1\bigr)_+

    Args:
        alpha: free parameters of any shape; entries along `dim` compete with each other.
        beta: one free scalar a group, that is the shape of `alpha` without `dim`; or a scalar for all groups.
        dim: the dimension, or tuple of dimensions, of one competition group.
        rgf: `elu_alpha` of rectified gradient flow (Eq. 15; the paper uses 0.1), or None for plain relu.

    Returns:
        A tensor like `alpha`. Fewer than `1 / sigmoid(beta)` entries of a group are not zero.

    Edges: an all-dropped group gives zeros and, without `rgf`, zero gradients; a group of one is
    `alpha * (1 - sigmoid(beta))`, not dropped until `sigmoid(beta)` rounds to 1; an `alpha` of exactly 0 stays 0 and
    gets no gradient, even with `rgf`; half-precision input is computed in float32 and returned in its own dtype. A
    dropped entry still feels the loss through the norm it is part of.

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

    Computed from `p = softmax(alpha)` as `(p - sigmoid(beta))_+` over its sum, which is the same and cannot overflow.
    With `rgf` the elu therefore sees `p - sigmoid(beta)`, the threshold distance relative to the whole group.

    Args:
        alpha: free parameters of any shape; entries along `dim` compete with each other.
        beta: one free scalar a group, that is the shape of `alpha` without `dim`; or a scalar for all groups.
        dim: the dimension, or tuple of dimensions, of one competition group.
        rgf: `elu_alpha` of rectified gradient flow, or None for plain relu.

    Returns:
        A tensor like `alpha`; every group sums to 1, or is all zero when every entry is below the threshold.

    Edges: an all-dropped group gives zeros and finite gradients (zero without `rgf`); a group of one is 1
    until `sigmoid(beta)` rounds to 1; half-precision input is computed in float32.

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
        beta_row: one free scalar a row, shape (..., n), or a scalar.
        beta_col: one free scalar a column, shape (..., m), or a scalar.
        rgf: `elu_alpha` of rectified gradient flow, or None for plain relu.

    Returns:
        A non-negative tensor like `alpha`.

    Edges: a row or column whose entries are all dropped is zero and has finite gradients (all dropped: zero without
    `rgf`). The values scale with
    `exp(alpha)`, so that `alpha` above 88 overflows float32; half-precision input is computed in float32.

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
