"""A small net whose own forward pass multiplies with a gate."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds

VALUES = [0.5, 0.0, 0.0, -0.25, 0.0, 1.0, 0.0, 0.125]


class GatedNet(nn.Module):
    """Half of the values of its gate are zero."""

    def __init__(self, gate: nn.Module | None = None, values: list[float] = VALUES) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, len(values)), nn.Linear(len(values), 2)
        self.gate = ds.SignedGate.from_values(values) if gate is None else gate

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x)) * self.gate())


class GatedConv(nn.Module):
    """The gate brought to the shape of the maps by a function."""

    def __init__(self, spread: Callable[[Tensor], Tensor], gate: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 2, 3)
        self.gate, self.spread = ds.SignedGate.from_values(VALUES) if gate is None else gate, spread

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x)) * self.spread(self.gate()))


def column(values: list[float]) -> ds.SignedGate:
    """A gate of shape (channels, 1, 1)."""
    return ds.SignedGate.from_values(torch.tensor(values)[:, None, None], dim=0)
