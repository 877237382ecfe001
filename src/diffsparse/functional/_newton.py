"""Newton's method for the factors of rows and columns that make a matrix doubly stochastic.

With P = diag(r) A diag(c), sums R of its rows and C of its columns, multiplying the factors by exp(x) and exp(y)
changes the sums by M (x, y) to first order, M = [[diag(R), P], [P^T, diag(C)]]. A Newton step and the gradient of the
result both solve a system with M. It is singular: rows and columns of a connected block can be scaled against each
other.
"""

import torch
from torch import Tensor

from diffsparse.functional.balance import scaling_factors

START_ITERATIONS = 10
LARGEST_CHANGE = 2.0
PATIENCE = 4


@torch.no_grad()
def find_scaling(matrix: Tensor, tolerance: float, steps: int) -> tuple[Tensor, Tensor] | None:
    """Factors of rows and columns, (n,) each, with which every sum that is not empty is within `tolerance` of 1.

    None if `steps` Newton steps do not find them, or as soon as they come no nearer.
    """
    rows, columns = (factors.squeeze(-1) for factors in scaling_factors(matrix, START_ITERATIONS))
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
        # Far from the solution the exponential leaves its tangent soon.
        damping = LARGEST_CHANGE / max(x.abs().max().item(), y.abs().max().item(), LARGEST_CHANGE)
        rows, columns = rows * (damping * x).exp(), columns * (damping * y).exp()
    return None


@torch.no_grad()
def solve_sums(scaled: Tensor, row_side: Tensor, column_side: Tensor, accuracy: float) -> tuple[Tensor, Tensor]:
    """A solution (x, y) of M (x, y) = (row_side, column_side), 0 for empty rows and columns.

    Conjugate gradients on what remains when x is eliminated, with C as the preconditioner. They stay in the range of M,
    so that its null space needs no treatment; `accuracy` is that of the residual relative to the right side.
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
