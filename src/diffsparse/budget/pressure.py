"""The term of the loss that raises thresholds."""

import torch
import torch.nn.functional as F
from torch import Tensor

from diffsparse.budget.entries import GateEntries
from diffsparse.budget.limits import Mask, Numbers
from diffsparse.penalties import Norm


class Pressure:
    r"""On thresholds alone, :math:`-\lambda \sum_g w_g\, n_g \log\sigma(\beta_g)`, or on gates by a norm.

    The first sees no scale: which entries survive is left to the loss. A norm pulls all entries of a group to zero.

    Args:
        entries: of the gates.
        norm: a norm for the gates; None presses on thresholds.
        strength: lambda.
    """

    def __init__(self, entries: GateEntries, norm: Norm | None, strength: float) -> None:
        self._entries, self._norm, self._strength = entries, norm, strength
        self._sizes = entries.sizes
        self._factors: tuple[Numbers, Tensor] | None = None

    def keep(self, entries: GateEntries, groups: Mask) -> None:
        """Go on with what is left of the entries; a group that became smaller is pressed as hard as before."""
        self._entries, self._sizes = entries, self._sizes[groups]

    def term(self, weights: Numbers) -> Tensor:
        """The term, for these weights of groups."""
        gates = list(self._entries.gates.values())
        place = gates[0].beta.device
        factors = self._on(place, gates[0].beta.dtype, weights)
        if self._norm is None:
            betas = torch.cat([gate.beta.flatten().to(place) for gate in gates])
            return -(factors * F.logsigmoid(betas)).sum()
        rows = [row for gate in gates for row in gate.groups(gate())[0]]
        return (factors * torch.stack([self._norm(row.unsqueeze(0)).to(place) for row in rows])).sum()

    def _on(self, place: torch.device, dtype: torch.dtype, weights: Numbers) -> Tensor:
        """Lambda and weights together; sent to the device once per change."""
        if self._factors is None or self._factors[0] is not weights:
            numbers = self._strength * weights * (self._sizes if self._norm is None else 1.0)
            self._factors = weights, torch.as_tensor(numbers, dtype=dtype, device=place)
        return self._factors[1]
