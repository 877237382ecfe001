"""The signed gate: scales of channels, edges of a graph, weights of a sum."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from diffsparse.functional import initial_alpha_beta, signed_threshold
from diffsparse.functional._groups import Dims
from diffsparse.functional.initial import initial_beta
from diffsparse.gates.gate import checked_values, values_dtype
from diffsparse.gates.vector import DROPPED, VectorGate


class SignedGate(VectorGate):
    r"""Owns `alpha` and `beta` of a signed gate (Eq. 12): :math:`a = \mathrm{sign}(\alpha)(|\alpha| -
    \sigma(\beta)\|\alpha\|_1)_+`.

    Args:
        size: number of entries, or the shape of a batch of groups.
        dim: dimension or dimensions of one competition group.
        value: what every entry starts at (the paper: 0.5).
        rgf: `elu_alpha` of rectified gradient flow, or None.

    Shape: `gate()` has the shape `size`; `beta` has that shape without `dim`.

    Example:
        >>> gate = SignedGate(3)
        >>> gate().tolist()
        [0.5, 0.5, 0.5]
        >>> SignedGate.from_values([0.7, 0.0, -0.2])().detach()
        tensor([ 0.7000,  0.0000, -0.2000])
    """

    def __init__(
        self,
        size: int | Sequence[int],
        *,
        dim: Dims = -1,
        value: float = 0.5,
        rgf: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(size, dim=dim, rgf=rgf, device=device, dtype=dtype)
        alpha, _ = initial_alpha_beta(self.group_size, value, dtype=torch.float64)
        self.alpha.detach().fill_(alpha[0].item())

    def forward(self) -> Tensor:
        return signed_threshold(self.alpha, self.beta, self.dims, rgf=self.rgf)

    @classmethod
    def from_values(cls, values: Tensor | Sequence[float], *, dim: Dims = -1, rgf: float | None = None) -> Self:
        r"""A gate that starts at `values`, up to float rounding, with the paper's `beta`.

        With m survivors that sum to A in magnitude, s = sigmoid(beta) and dropped entries at half the threshold t,

        .. math:: t = \frac{sA}{1 - s\,(m + \tfrac12(n-m))}, \qquad
                  \alpha_i = a_i + \mathrm{sign}(a_i)\,t \text{ for survivors},\; \tfrac12 t \text{ for the dropped}

        A group that is all zero starts all dropped: equal `alpha` under a threshold half as high again as they are.
        A non-zero value too small to be seen beside the threshold becomes the smallest step that can be.
        """
        given = checked_values(values)
        gate = cls(given.shape, dim=dim, rgf=rgf, device=given.device, dtype=values_dtype(values))
        (rows,) = gate.groups(given)
        gate.set_groups(*_solve(rows))
        gate._revive(given, gate.alpha.detach().abs())
        return gate


def _solve(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Closed form for rows of shape (groups, n): alpha and beta, in float64."""
    n = rows.shape[-1]
    beta = rows.new_full(rows.shape[:1], initial_beta(n))
    fraction = beta.sigmoid()
    alive = (rows != 0).sum(-1)
    threshold = fraction * rows.abs().sum(-1) / (1 - fraction * (alive + DROPPED * (n - alive)))
    threshold = threshold.unsqueeze(-1)
    alpha = torch.where(rows != 0, rows + rows.sign() * threshold, DROPPED * threshold)
    if n > 1:
        dead = alive == 0
        share = min(1.5 / n, (1 + 1 / n) / 2)
        beta = torch.where(dead, torch.logit(beta.new_tensor(share)), beta)
        alpha = torch.where(dead.unsqueeze(-1), alpha.new_tensor(0.5), alpha)
    return alpha, beta
