"""The matrix gate: entries of an adjacency compete in their row and in their column."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_whole
from diffsparse.functional import matrix_threshold
from diffsparse.functional.groups import initial_beta
from diffsparse.gates.gate import DROPPED, Gate, checked_values, closed_beta, gate_dtype, require_room, values_dtype


class MatrixGate(Gate):
    r"""Owns `alpha` (rows, columns), `beta_row` and `beta_col` of a matrix gate, not normalised:
    :math:`(e^{\alpha_{ij}} - \sigma(\beta^r_i)\|\gamma_{i:}\|_1 - \sigma(\beta^c_j)\|\gamma_{:j}\|_1)_+`.

    Args:
        rows, columns: the shape of the matrix; `columns` defaults to `rows`.
        rgf: `elu_alpha` of rectified gradient flow, or None.

    Starts uniform: `alpha` is 0 and each `beta` is -log(n^2 + n - 1) for its group of n entries.

    Example:
        >>> MatrixGate.from_values([[0.5, 0.0], [0.0, 0.25]])().detach()
        tensor([[0.5000, 0.0000],
                [0.0000, 0.2500]])
    """

    beta_row: nn.Parameter
    beta_col: nn.Parameter

    def __init__(
        self,
        rows: int,
        columns: int | None = None,
        *,
        rgf: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(rgf)
        columns = rows if columns is None else columns
        if require_whole("rows", rows, low=0) * require_whole("columns", columns, low=0) < 2:
            raise SparsityError(f"a matrix gate needs at least two entries to compete, got {rows} x {columns}")
        self.alpha = nn.Parameter(torch.zeros(rows, columns, device=device, dtype=gate_dtype(dtype)))
        self.beta_row = nn.Parameter(self.alpha.detach().new_full((rows,), initial_beta(columns)))
        self.beta_col = nn.Parameter(self.alpha.detach().new_full((columns,), initial_beta(rows)))

    def forward(self) -> Tensor:
        return matrix_threshold(self.alpha, self.beta_row, self.beta_col, rgf=self.rgf)

    def groups(self, values: Tensor) -> tuple[Tensor, ...]:
        return values, values.mT

    @classmethod
    def from_values(cls, values: Tensor | Sequence[Any], *, rgf: float | None = None) -> Self:
        r"""A gate that starts at the non-negative matrix `values`, with the paper's thresholds.

        Survivors are :math:`\gamma_{ij} = a_{ij} + r_i + c_j`, dropped entries half of :math:`r_i + c_j`. The
        thresholds r and c are fixed fractions of the row and column sums of gamma, so they solve one linear system.
        A positive value too small to see beside its thresholds becomes the smallest step that can be seen.
        """
        given = checked_values(values)
        if given.dim() != 2:
            raise SparsityError(f"values of a matrix gate must have shape (rows, columns), got {tuple(given.shape)}")
        rows, columns = given.shape
        gate = cls(rows, columns, rgf=rgf, device=given.device, dtype=values_dtype(values))
        low, high = given.min().item(), given.max().item()
        if low < 0 or high <= 0:
            wanted = "must not be negative and at least one must be positive"
            raise SparsityError(f"values of a matrix gate {wanted}, got values from {low:g} to {high:g}")
        gate.set_values(given)
        return gate

    @torch.no_grad()
    def set_values(self, values: Tensor) -> None:
        given = checked_values(values)
        gamma = gamma_of(given)
        for groups in self.groups(gamma):
            require_room(groups, self.alpha.dtype)
        self.alpha.copy_(gamma.log())
        rows, columns = given.shape
        closed = not bool(given.any())
        self.beta_row.fill_(closed_beta(columns) if closed else initial_beta(columns))
        self.beta_col.fill_(closed_beta(rows) if closed else initial_beta(rows))
        self._revive(given)


def gamma_of(values: Tensor, allowed: Tensor | None = None) -> Tensor:
    """exp(alpha) of a matrix gate that has these values with the paper's thresholds; zeros get half their threshold.

    Entries that are not `allowed` are 0 here and take no part. If all values are zero, the others are 1.
    """
    may = torch.ones_like(values) if allowed is None else allowed.to(values)
    if not bool(values.any()):
        return may
    share = torch.where(values > 0, 1.0, DROPPED).to(values) * may
    row_threshold, col_threshold = _thresholds(values, share)
    reach = row_threshold.unsqueeze(1) + col_threshold
    return values + share * reach


def _thresholds(values: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Thresholds r, c with r = s_r * sum_j gamma, c = s_c * sum_i gamma, where gamma = values + share * (r + c)."""
    rows, columns = values.shape
    row_fraction = values.new_tensor(initial_beta(columns)).sigmoid()
    col_fraction = values.new_tensor(initial_beta(rows)).sigmoid()
    top = torch.cat([torch.diag(share.sum(1)), share], 1) * row_fraction
    bottom = torch.cat([share.mT, torch.diag(share.sum(0))], 1) * col_fraction
    known = torch.cat([values.sum(1) * row_fraction, values.sum(0) * col_fraction])
    system = torch.eye(rows + columns, device=values.device, dtype=values.dtype) - torch.cat([top, bottom])
    solved = torch.linalg.solve(system, known)
    return solved[:rows], solved[rows:]
