"""Balanced normalisation carried to its limit, with the gradient of the limit instead of that of the way to it."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from diffsparse.errors import SparsityError, require_floats, require_number, require_whole
from diffsparse.functional._groups import group_dims, in_float32
from diffsparse.functional._newton import find_scaling, solve_sums
from diffsparse.functional._precision import full_precision
from diffsparse.functional.balance import balanced_normalize


class _Scaled(torch.autograd.Function):
    """diag(r) A diag(c) whose r and c depend on A such that the sums of rows and columns stay what they are."""

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


def balanced_limit(matrix: Tensor, *, tolerance: float = 1e-5, steps: int = 20, iterations: int = 20) -> Tensor:
    r"""The doubly stochastic matrix that `balanced_normalize` tends to, differentiated implicitly.

    .. math:: A = \mathrm{diag}(r)\, \tilde A\, \mathrm{diag}(c), \qquad A 1 = 1, \quad A^\top 1 = 1

    The factors r and c are found without gradients by Newton's method, whose steps are solved by conjugate gradients.
    With :math:`G = \partial L / \partial A` the gradient is

    .. math:: \frac{\partial L}{\partial \tilde A_{ij}} = r_i c_j (G_{ij} - x_i - y_j), \qquad
              \begin{pmatrix} I & A \\ A^\top & I \end{pmatrix} \begin{pmatrix} x \\ y \end{pmatrix} =
              \begin{pmatrix} (G \odot A) 1 \\ (G \odot A)^\top 1 \end{pmatrix}

    a system that is singular but solvable, and x_i + y_j is unique on every connected block of non-zeros. Memory and
    gradient do not depend on how many steps were needed.

    Args:
        matrix: non-negative, shape (n, n).
        tolerance: how far sums of rows and columns may be from 1.
        steps: Newton steps to try.
        iterations: of `balanced_normalize` where no such factors are found.

    Edges: an empty row or column stays zero; the other rows and columns then balance only if as many rows as columns
    are empty. A pattern of non-zeros without a perfect matching cannot be balanced, and one with a matching but
    without total support only in the limit of entries that vanish, often beyond `tolerance`: such a matrix is given to
    `balanced_normalize`, value and gradient. Half-precision input is computed in float32, for which `tolerance` should
    not be below 1e-6. There is no second derivative, and `torch.compile` leaves its graph for the search.

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
