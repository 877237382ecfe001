"""Balanced normalisation: towards a doubly stochastic matrix, symmetric in rows and columns."""

import torch
from torch import Tensor

from diffsparse.errors import SparsityError, require_floats, require_whole
from diffsparse.functional._groups import group_dims, in_float32
from diffsparse.functional._precision import full_precision

# A pattern that cannot be balanced drives row and column factors apart, each by up to n^(1/4) an iteration. Ten of
# these stay far from the ends of float32; then the factors go into the matrix and start again from 1.
ITERATIONS_AT_ONCE = 10


def balanced_normalize(matrix: Tensor, iterations: int = 20) -> Tensor:
    r"""Iterates row and column scaling at once (section "Learning Sparse Affinity Matrix").

    .. math:: A \leftarrow D_r^{-1/2}\, A\, D_c^{-1/2}, \qquad
              [D_r]_i = \textstyle\sum_j A_{ij},\; [D_c]_j = \textstyle\sum_i A_{ij}

    This is Ruiz' scaling in the 1-norm. Rows and columns tend to sum to 1 where the pattern of non-zeros has total
    support (every non-zero lies on a positive diagonal); convergence is slow on very sparse patterns and the zero
    pattern never changes. `balanced_limit` goes to the limit of this.

    Only the factors of rows and columns are iterated, :math:`A = \mathrm{diag}(r)\, \tilde A\, \mathrm{diag}(c)` with
    :math:`D_r = r \odot \tilde A c`, so that the backward pass keeps vectors of most iterations, not matrices.

    Args:
        matrix: non-negative, shape (..., n, n).
        iterations: how often to apply the update; 0 returns the matrix as it is.

    Edges: an empty row or column stays zero and has finite gradients; where too many rows share too few columns, the
    gradient by a zero entry of these rows grows by up to n^(1/4) an iteration, which hundreds of them can overflow;
    half-precision input, and input under autocast, is computed in float32.

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
    with full_precision(matrix.device):
        for done in range(0, iterations, ITERATIONS_AT_ONCE):
            rows, columns = scaling_factors(balanced, min(ITERATIONS_AT_ONCE, iterations - done))
            balanced = rows * balanced * columns.mT
    return balanced.to(matrix.dtype)


def scaling_factors(matrix: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Factors of the rows and of the columns of `matrix` after so many updates, both of shape (..., n, 1)."""
    rows = columns = matrix.new_ones(matrix.shape[:-1]).unsqueeze(-1)
    for _ in range(iterations):
        row_sums, column_sums = rows * (matrix @ columns), columns * (matrix.mT @ rows)
        rows, columns = rows * _inverse_root(row_sums), columns * _inverse_root(column_sums)
    return rows, columns


def _inverse_root(sums: Tensor) -> Tensor:
    return torch.where(sums > 0, sums, 1.0).rsqrt()
