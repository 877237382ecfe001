"""The simplex gate: non-negative weights that sum to one."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from diffsparse.errors import SparsityError
from diffsparse.functional import simplex_threshold
from diffsparse.functional.groups import Dims, initial_beta
from diffsparse.gates.gate import checked_values, values_dtype
from diffsparse.gates.vector import DROPPED, VectorGate


class SimplexGate(VectorGate):
    r"""Owns `alpha` and `beta` of a gate on the simplex (Eq. 9-11): exp, threshold, normalise.

    Args:
        size: number of entries, or the shape of a batch of groups.
        dim: dimension or dimensions of one competition group.
        rgf: `elu_alpha` of rectified gradient flow, or None.

    Starts uniform at 1/n. Penalise it with `Lp(p < 1)`: its l1 norm is always 1.

    Example:
        >>> SimplexGate(4)().tolist()
        [0.25, 0.25, 0.25, 0.25]
        >>> SimplexGate.from_values([0.75, 0.25, 0.0])().detach()
        tensor([0.7500, 0.2500, 0.0000])
    """

    def forward(self) -> Tensor:
        return simplex_threshold(self.alpha, self.beta, self.dims, rgf=self.rgf)

    @classmethod
    def from_values(cls, values: Tensor | Sequence[float], *, dim: Dims = -1, rgf: float | None = None) -> Self:
        r"""A gate that starts at `values`, each group non-negative with sum 1, with the paper's `beta`.

        With m survivors and s = sigmoid(beta): :math:`\alpha_i = \log(s + T a_i)` for survivors and
        :math:`\log(s/2)` for the dropped, where :math:`T = 1 - s(m + (n-m)/2)`. A positive value too small to see
        beside the threshold becomes the smallest step that can be seen.
        """
        given = checked_values(values)
        gate = cls(given.shape, dim=dim, rgf=rgf, device=given.device, dtype=values_dtype(values))
        (rows,) = gate.groups(given)
        if bool((rows < 0).any()):
            raise SparsityError(f"values of a simplex gate must not be negative, got {rows.min().item():g}")
        sums = rows.sum(-1)
        if not torch.allclose(sums, torch.ones_like(sums), atol=1e-4):
            worst = sums[(sums - 1).abs().argmax()].item()
            raise SparsityError(f"values of a simplex gate must sum to 1 in every group, got a sum of {worst:g}")
        beta = rows.new_full(rows.shape[:1], initial_beta(gate.group_size))
        fraction = beta.sigmoid().unsqueeze(-1)
        alive = (rows > 0).sum(-1, keepdim=True)
        total = 1 - fraction * (alive + DROPPED * (gate.group_size - alive))
        gate.set_groups(torch.where(rows > 0, fraction + total * rows, DROPPED * fraction).log(), beta)
        gate._revive(given, gate.alpha.detach().abs().clamp(min=1))
        return gate
