"""Balanced normalisation towards a doubly stochastic matrix: a fixed number of iterations, or the limit.

The limit is found by Newton's method. Let P = diag(r) A diag(c) have row sums R and column sums C. Multiplying the
factors r and c by exp(x) and exp(y) changes the sums by M (x, y) to first order, with
M = [[diag(R), P], [P^T, diag(C)]]. A Newton step and the gradient of the limit both solve a linear system with M. M is
singular: the rows and columns of a connected block can be scaled against each other.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from diffsparse.errors import SparsityError, require_floats, require_number, require_whole
from diffsparse.functional.groups import full_precision, group_dims, in_float32

# A matrix that cannot be balanced drives row and column factors apart, each by up to n^(1/4) per iteration. Ten
# iterations stay far within float32; then the factors are multiplied into the matrix and restart from 1.
ITERATIONS_AT_ONCE = 10
# Newton's method starts after a few plain iterations, limits each step, and stops if it makes no progress.
START_ITERATIONS = 10
LARGEST_CHANGE = 2.0
PATIENCE = 4


def balanced_normalize(matrix: Tensor, iterations: int = 20) -> Tensor:
    r"""Scales rows and columns together, a fixed number of times (section "Learning Sparse Affinity Matrix").

    .. math:: A \leftarrow D_r^{-1/2}\, A\, D_c^{-1/2}, \qquad
              [D_r]_i = \textstyle\sum_j A_{ij},\; [D_c]_j = \textstyle\sum_i A_{ij}

    This is Ruiz' scaling in the 1-norm. The sums of rows and columns tend to 1 if the pattern of non-zeros has total
    support (every non-zero lies on a positive diagonal). Convergence is slow on very sparse patterns; the zero pattern
    never changes. `balanced_limit` computes the limit. Only the factors of rows and columns are iterated,
    :math:`A = \mathrm{diag}(r)\, \tilde A\, \mathrm{diag}(c)`, so the backward pass mostly stores vectors.

    Args:
        matrix: non-negative, shape (..., n, n).
        iterations: how often to apply the update; 0 returns the matrix unchanged.

    Edges: an empty row or column stays zero and has finite gradients. If too many rows share too few columns, the
    gradient with respect to a zero entry of these rows grows by up to n^(1/4) per iteration and can overflow after
    hundreds of them. Half-precision input, and input under autocast, is computed in float32.

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
            rows, columns = _scaling_factors(balanced, min(ITERATIONS_AT_ONCE, iterations - done))
            balanced = rows * balanced * columns.mT
    return balanced.to(matrix.dtype)


def balanced_limit(matrix: Tensor, *, tolerance: float = 1e-5, steps: int = 20, iterations: int = 20) -> Tensor:
    r"""The doubly stochastic matrix that `balanced_normalize` converges to, differentiated implicitly.

    .. math:: A = \mathrm{diag}(r)\, \tilde A\, \mathrm{diag}(c), \qquad A 1 = 1, \quad A^\top 1 = 1

    Newton's method finds the factors r and c without gradients; conjugate gradients solve each step. With
    :math:`G = \partial L / \partial A` the gradient is

    .. math:: \frac{\partial L}{\partial \tilde A_{ij}} = r_i c_j (G_{ij} - x_i - y_j), \qquad
              \begin{pmatrix} I & A \\ A^\top & I \end{pmatrix} \begin{pmatrix} x \\ y \end{pmatrix} =
              \begin{pmatrix} (G \odot A) 1 \\ (G \odot A)^\top 1 \end{pmatrix}

    This system is singular but solvable, and x_i + y_j is unique on every connected block of non-zeros. Memory and
    gradient do not depend on the number of steps.

    Args:
        matrix: non-negative, shape (n, n).
        tolerance: how far the sums of rows and columns may be from 1.
        steps: the most Newton steps to try.
        iterations: for `balanced_normalize`, which is used if the steps do not reach the tolerance.

    Edges: an empty row or column stays zero; the others then balance only if as many rows as columns are empty. A
    pattern of non-zeros without a perfect matching cannot be balanced. A pattern with a matching but without total
    support is balanced only in a limit where entries vanish, often beyond `tolerance`. Such matrices fall back to
    `balanced_normalize`, for value and gradient. Half-precision input is computed in float32, for which `tolerance`
    should be at least 1e-6. There is no second derivative, and `torch.compile` breaks its graph here.

    Example:
        >>> balanced_limit(torch.tensor([[1.0, 3.0], [2.0, 1.0]]))
        tensor([[0.2899, 0.7101],
                [0.7101, 0.2899]])
    """
    require_floats("matrix", matrix)
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1]:
        raise SparsityError(f"balanced_limit needs one square matrix (n, n), got shape {tuple(matrix.shape)}")
    group_dims(matrix, (-1, -2), "matrix")
    require_number("tolerance", tolerance, above=0)
    require_whole("steps", steps, low=1)
    require_whole("iterations", iterations, low=0)
    wide = in_float32(matrix)
    with full_precision(matrix.device):
        scaling = find_scaling(wide.detach(), tolerance, steps)
    if scaling is None:
        return balanced_normalize(matrix, iterations)
    balanced: Tensor = _Scaled.apply(wide, *scaling)  # type: ignore[no-untyped-call]
    return balanced.to(matrix.dtype)


class _Scaled(torch.autograd.Function):
    """diag(r) A diag(c), where r and c depend on A so that the sums of rows and columns stay constant."""

    @staticmethod
    def forward(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        return rows.unsqueeze(1) * matrix * columns

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        _, rows, columns = inputs
        ctx.save_for_backward(output, rows, columns)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        scaled, rows, columns = ctx.saved_tensors
        with full_precision(grad.device):
            weighted = grad * scaled
            accuracy = torch.finfo(grad.dtype).eps ** 0.75
            x, y = solve_sums(scaled, weighted.sum(1), weighted.sum(0), accuracy)
        return rows.unsqueeze(1) * (grad - x.unsqueeze(1) - y) * columns, None, None


@torch.no_grad()
def find_scaling(matrix: Tensor, tolerance: float, steps: int) -> tuple[Tensor, Tensor] | None:
    """Factors of rows and columns, (n,) each, that bring every non-empty sum within `tolerance` of 1.

    None if `steps` Newton steps are not enough or make no progress.
    """
    rows, columns = (factors.squeeze(-1) for factors in _scaling_factors(matrix, START_ITERATIONS))
    used_rows, used_columns = matrix.any(1), matrix.any(0)
    if used_rows.sum() != used_columns.sum():
        return None
    errors: list[float] = []
    while len(errors) <= steps:
        scaled = rows.unsqueeze(1) * matrix * columns
        row_side = torch.where(used_rows, 1 - scaled.sum(1), 0.0)
        column_side = torch.where(used_columns, 1 - scaled.sum(0), 0.0)
        errors.append(max(row_side.abs().max().item(), column_side.abs().max().item()))
        if errors[-1] <= tolerance:
            return rows, columns
        if len(errors) > PATIENCE and not errors[-1] <= 0.5 * errors[-1 - PATIENCE]:
            return None
        x, y = solve_sums(scaled, row_side, column_side, min(0.1, errors[-1]))
        # far from the solution the linear model of the exponential is poor
        damping = LARGEST_CHANGE / max(x.abs().max().item(), y.abs().max().item(), LARGEST_CHANGE)
        rows, columns = rows * (damping * x).exp(), columns * (damping * y).exp()
    return None


@torch.no_grad()
def solve_sums(scaled: Tensor, row_side: Tensor, column_side: Tensor, accuracy: float) -> tuple[Tensor, Tensor]:
    """A solution (x, y) of M (x, y) = (row_side, column_side), 0 for empty rows and columns.

    Eliminates x and solves for y by conjugate gradients, with C as the preconditioner. They stay in the range of M, so
    its null space needs no treatment. `accuracy` is that of the residual relative to the right side.
    """
    row_sums, column_sums = scaled.sum(1), scaled.sum(0)
    per_row, per_column = (torch.where(sums > 0, 1 / sums, 0.0) for sums in (row_sums, column_sums))
    carried = scaled.mT @ (per_row * row_side)
    residual = column_side - carried
    enough = accuracy**2 * (per_column * (column_side.square() + carried.square())).sum().item()
    y = torch.zeros_like(residual)
    direction = per_column * residual
    left = residual @ direction
    for _ in range(2 * len(y)):
        if not left.item() > enough:
            break
        image = column_sums * direction - scaled.mT @ (per_row * (scaled @ direction))
        curvature = direction @ image
        if not curvature.item() > 0:
            break
        y = y + left / curvature * direction
        residual = residual - left / curvature * image
        better = per_column * residual
        before, left = left, residual @ better
        direction = better + left / before * direction
    return per_row * (row_side - scaled @ y), y


def _scaling_factors(matrix: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """The factors of rows and columns after that many updates of `balanced_normalize`, both of shape (..., n, 1)."""
    rows = columns = matrix.new_ones(matrix.shape[:-1]).unsqueeze(-1)
    for _ in range(iterations):
        row_sums, column_sums = rows * (matrix @ columns), columns * (matrix.mT @ rows)
        rows, columns = rows * _inverse_root(row_sums), columns * _inverse_root(column_sums)
    return rows, columns


def _inverse_root(sums: Tensor) -> Tensor:
    return torch.where(sums > 0, sums, 1.0).rsqrt()
