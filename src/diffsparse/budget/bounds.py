"""No step of the optimiser moves a gate far, where the network would not recover from it.

In layers in series, a norm behind takes out the common scale of gates. The smaller they are, the steeper the loss is in
them. When a threshold is just below all entries of a group, one step of plain SGD could close all of them, or multiply
them by a hundred. In a network without norms, gates that grow or shrink all at once make its signals explode or vanish.
"""

import torch
from torch import Tensor

from diffsparse.budget.entries import GateEntries
from diffsparse.budget.limits import Mask
from diffsparse.gates.vector import VectorGate

SHARE = 0.1
"""Farthest step of a value, as a share of the mean live value; of a threshold, of its mean distance to live entries."""


class StepBounds:
    """How far gates may be, after a step of the optimiser, from where they were before it."""

    def __init__(self) -> None:
        self._ranges: list[tuple[VectorGate, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]] = []

    @torch.no_grad()
    def remember(self, entries: GateEntries, groups: Mask) -> None:
        """Find bounds for these groups of gates, as they are before a step."""
        self._ranges = []
        for gate, part in entries.parts():
            if groups[part].any():
                chosen = torch.from_numpy(groups[part]).to(gate.beta.device)
                values, margins = gate.room()
                alpha, beta = gate.groups(gate.alpha)[0], gate.beta.flatten()
                far = torch.where(chosen, SHARE * values, torch.inf).unsqueeze(-1)
                high = torch.where(chosen, SHARE * margins.clamp_max(1.0), torch.inf)
                self._ranges.append((gate, (alpha - far, alpha + far), (beta - high, beta + high)))

    @torch.no_grad()
    def apply(self) -> None:
        """Take back what the step has moved too far."""
        for gate, values, thresholds in self._ranges:
            gate.set_groups(gate.groups(gate.alpha)[0].clamp(*values), gate.beta.flatten().clamp(*thresholds))
        self._ranges = []
