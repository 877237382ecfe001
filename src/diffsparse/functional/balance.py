"""Balanced normalisation: towards a doubly stochastic matrix, symmetric in rows and columns."""

import torch
from torch import Tensor

from diffsparse.errors import SparsityError, require_floats, require_whole
from diffsparse.functional._groups import group_dims, in_float32


def _inverse_root(sums: Tensor) -> Tensor:
    return torch.where(sums > 0, sums, 1.0).rsqrt()


def balanced_normalize(matrix: Tensor, iterations: int = 20) -> Tensor:
    r"""Iterates row and column scaling at once (section "Learning Sparse Affinity Matrix").

    .. math:: A \leftarrow D_r^{-1/2}\, A\, D_c^{-1/2}, \qquad
              [D_r]_i = \textstyle\sum_j A_{ij},\; [D_c]_j = \textstyle\sum_i A_{ij}

    This is Ruiz' scaling in the 1-norm. Rows and columns tend to sum to 1 where the pattern of non-zeros has total
    support (every non-zero lies on a positive diagonal); convergence is slow on very sparse patterns and the zero
    pattern never changes.

    Args:
        matrix: non-negative, shape (..., n, n).
        iterations: how often to apply the update; 0 returns the matrix as it is.

    Edges: an empty row or column stays zero and has finite gradients; half-precision input is computed in float32.

    Example:
        >>> balanced = balanced_normalize(torch.tensor([[1.0, 3.0], [2.0, 1.0]]))
        >>> balanced.sum(0).round(decimals=4).tolist(), balanced.sum(1).round(decimals=4).tolist()
        ([1.0, 1.0], [1.0, 1.0])
    """
    require_floats("matrix", matrix)
    if matrix.dim() < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise SparsityError(f"balanced_normalize needs square matrices (..., n, n), got shape {tuple(matrix.shape)}")
    require_whole("iterations", iterations, low=0)
    group_dims(matrix, (-1, -2), "matrix")
    balanced = in_float32(matrix)
    for _ in range(iterations):
        rows = _inverse_root(balanced.sum(-1, keepdim=True))
        columns = _inverse_root(balanced.sum(-2, keepdim=True))
        balanced = rows * balanced * columns
    return balanced.to(matrix.dtype)
