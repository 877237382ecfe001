"""The signed gate: scales of channels, edges of a graph, weights of a sum."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from diffsparse.errors import SparsityError
from diffsparse.functional import signed_threshold
from diffsparse.functional.groups import Dims, initial_alpha, initial_beta
from diffsparse.gates.gate import checked_values, require_room, values_dtype
from diffsparse.gates.vector import DROPPED, VectorGate


class SignedGate(VectorGate):
    r"""Owns `alpha` and `beta` of a signed gate (Eq. 12): :math:`a = \mathrm{sign}(\alpha)(|\alpha| -
    \sigma(\beta)\|\alpha\|_1)_+`.

    Args:
        size: number of entries, or the shape of a batch of groups.
        dim: dimension or dimensions of one competition group.
        value: what every entry starts at (the paper: 0.5); not 0, where a gate gets no gradient.
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
        start, limits = abs(initial_alpha(self.group_size, value)), torch.finfo(self.alpha.dtype)
        if start < limits.tiny or start * self.group_size > limits.max:
            raise SparsityError(
                f"the value a gate starts at must be neither zero, where it gets no gradient, nor out of the range of "
                f"{self.alpha.dtype} (the paper: 0.5), got {value!r}"
            )
        self.value = value
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every entry back to `value`, whatever the gate started at."""
        self.alpha.detach().fill_(initial_alpha(self.group_size, self.value))
        self.beta.detach().fill_(initial_beta(self.group_size))

    def forward(self) -> Tensor:
        return signed_threshold(self.alpha, self.beta, self.dims, rgf=self.rgf)

    @classmethod
    def from_values(cls, values: Tensor | Sequence[float], *, dim: Dims = -1, rgf: float | None = None) -> Self:
        r"""A gate that starts at `values`, up to float rounding, with the paper's `beta`.

        With m survivors that sum to A in magnitude, s = sigmoid(beta) and dropped entries at half the threshold t,

        .. math:: t = \frac{sA}{1 - s\,(m + \tfrac12(n-m))}, \qquad
                  \alpha_i = a_i + \mathrm{sign}(a_i)\,t \text{ for survivors},\; \tfrac12 t \text{ for the dropped}

        A group that is all zero starts all dropped: equal `alpha` under a threshold 1.5 times as high. A group of one
        that is zero has `alpha = 0` and is dead for good, even with `rgf`. A non-zero value too small to see beside the
        threshold becomes the smallest step that can be seen.
        """
        given = checked_values(values)
        gate = cls(given.shape, dim=dim, rgf=rgf, device=given.device, dtype=values_dtype(values))
        alpha, beta = _solve(*gate.groups(given))
        require_room(alpha, gate.alpha.dtype)
        gate.set_groups(alpha, beta)
        gate._revive(given, gate.alpha.detach().abs())
        return gate


def _solve(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Closed form for rows of shape (groups, n): alpha and beta, in float64."""
    n = rows.shape[-1]
    beta = rows.new_full(rows.shape[:1], initial_beta(n))
    fraction = beta.sigmoid()
    alive = (rows != 0).sum(-1)
    threshold = (fraction * rows.abs().sum(-1) / (1 - fraction * (alive + DROPPED * (n - alive)))).unsqueeze(-1)
    alpha = torch.where(rows != 0, rows + rows.sign() * threshold, DROPPED * threshold)
    if n > 1:
        dead = alive == 0
        share = min(1.5 / n, (1 + 1 / n) / 2)
        beta = torch.where(dead, torch.logit(beta.new_tensor(share)), beta)
        alpha = torch.where(dead.unsqueeze(-1), alpha.new_tensor(0.5), alpha)
    return alpha, beta
