"""The term of the loss that raises thresholds."""

import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diffsparse.budget.entries import GateEntries
from diffsparse.budget.limits import Mask, Numbers
from diffsparse.errors import SparsityWarning
from diffsparse.penalties import Norm

NARROW = 1 / 16
"""If less than this share of the whole cost is missing, the pressure is in proportion to what is."""
DOUBLINGS = 48.0
"""How often lambda doubles on a way on which the whole cost is missing throughout."""
LIMIT = 64.0
"""Lambda stays between its first value divided by this, and multiplied by it."""


class Pressure:
    r"""On thresholds alone, :math:`-\lambda \sum_g w_g\, n_g \log\sigma(\beta_g)`, or on gates by a norm.

    The first sees no scale: which entries survive is left to the loss. Lambda rises while the cost is too high, falls
    while it is too low, and does not act at all then. A norm pulls all entries of a group to zero; a larger lambda
    would shrink all of them alike, so it stays.

    Args:
        entries: of the gates.
        norm: a norm for the gates; None presses on thresholds.
        strength: lambda at first.
    """

    def __init__(self, entries: GateEntries, norm: Norm | None, strength: float) -> None:
        self._entries, self._norm, self._first = entries, norm, strength
        # an entry that is alone in its group cannot die
        self._sizes = np.where(entries.sizes == 1, 0, entries.sizes)
        self._factor, self._share = 1.0, 1.0
        self._sent: tuple[Numbers, Mask, float, Tensor] | None = None
        self._asked = False

    @property
    def acts(self) -> bool:
        """Whether there is any pressure, now or later."""
        return self._first > 0

    @property
    def strength(self) -> float:
        """Lambda in force."""
        return self._first * self._factor * self._share

    def steer(self, missing: float, passed: float) -> None:
        """Change lambda: the cost is `missing` above the ramp, and the share `passed` of the way was made since."""
        self._share = min(max(missing / NARROW, 0.0), 1.0)
        if self._norm is None:
            self._factor = min(max(self._factor * 2 ** (DOUBLINGS * missing * passed), 1 / LIMIT), LIMIT)

    def keep(self, entries: GateEntries, groups: Mask) -> None:
        """Go on with what is left of the entries; a group that became smaller is pressed as hard as before."""
        self._entries, self._sizes = entries, np.where(entries.sizes == 1, 0, self._sizes[groups])

    def term(self, weights: Numbers, spared: Mask) -> Tensor:
        """The term, for these weights of groups; thresholds of those that are spared are not raised."""
        self._asked = True
        gates = list(self._entries.gates.values())
        place = gates[0].beta.device
        factors = self._on(place, gates[0].beta.dtype, weights, spared)
        if self._norm is None:
            betas = torch.cat([gate.beta.flatten().to(place) for gate in gates])
            return -(factors * F.logsigmoid(betas)).sum()
        rows = [row for gate in gates for row in gate.groups(gate())[0]]
        return (factors * torch.stack([self._norm(row.unsqueeze(0)).to(place) for row in rows])).sum()

    def warn_if_left_out(self) -> None:
        """Warn if nobody has asked for the term, where it does something: it presses, or bounds the steps of gates."""
        if not self._asked and (self.strength or self._entries.without_norm.any()):
            words = "penalty() was not called in two steps: add it to the loss, criterion(model(x), y) + "
            reason = "budget.penalty(). Without it the budget is reached by shifts alone, which cost accuracy"
            warnings.warn(words + reason, SparsityWarning, stacklevel=3)

    def _on(self, place: torch.device, dtype: torch.dtype, weights: Numbers, spared: Mask) -> Tensor:
        """Lambda and weights together; sent to the device once per change."""
        sent = self._sent
        if sent is None or sent[0] is not weights or sent[1] is not spared or sent[2] != self.strength:
            numbers = self.strength * weights * (np.where(spared, 0, self._sizes) if self._norm is None else 1.0)
            sent = weights, spared, self.strength, torch.as_tensor(numbers, dtype=dtype, device=place)
            self._sent = sent
        return sent[3]

    def state_dict(self) -> dict[str, float]:
        """How far lambda was steered."""
        return {"factor": self._factor, "share": self._share}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore what `state_dict` gave."""
        self._factor, self._share = float(state["factor"]), float(state["share"])
