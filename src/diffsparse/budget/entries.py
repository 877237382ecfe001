"""The entries of all gates of a model side by side: which live, how close each is to its threshold, and shifting it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError
from diffsparse.gates import Gate
from diffsparse.gates.vector import VectorGate

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.float64]]


class GateEntries:
    """Entries of several gates in one vector; each belongs to a competition group with one threshold.

    Args:
        gates: by name; raises for a gate without one threshold per group.
    """

    def __init__(self, gates: Mapping[str, Gate]) -> None:
        odd = [name for name, gate in gates.items() if not isinstance(gate, VectorGate)]
        if odd:
            raise SparsityError(
                f"a budget needs gates with one threshold per group (SignedGate, SimplexGate); '{odd[0]}' is a "
                f"{type(gates[odd[0]]).__name__}. Choose the others with only="
            )
        self.gates: dict[str, VectorGate] = dict(gates)  # type: ignore[arg-type]
        sizes = [(gate.alpha.numel() // gate.group_size, gate.group_size) for gate in self.gates.values()]
        self.group = np.repeat(
            np.arange(sum(groups for groups, _ in sizes)), [n for groups, n in sizes for _ in range(groups)]
        )
        """Group of each entry."""
        self.sizes = np.array([n for groups, n in sizes for _ in range(groups)])
        """Entries of each group."""
        self.count = len(self.group)

    @torch.no_grad()
    def alive(self) -> Mask:
        """Which entries are not zero."""
        rows = [gate.groups(gate())[0].flatten() for gate in self.gates.values()]
        return np.asarray(_joined(rows) != 0)

    @torch.no_grad()
    def margins(self) -> Numbers:
        """How far the logit of each entry's share lies above its threshold; an entry lives if this is above 0."""
        shares = [gate.shares() for gate in self.gates.values()]
        logits = _joined([torch.logit(share.double()).flatten() for share in shares])
        return np.asarray(logits - self.thresholds()[self.group], float)

    @torch.no_grad()
    def thresholds(self) -> Numbers:
        """beta of each group."""
        return np.asarray(_joined([gate.beta.double().flatten() for gate in self.gates.values()]), float)

    @torch.no_grad()
    def shift(self, by: Numbers) -> None:
        """Add to beta of each group."""
        start = 0
        for gate in self.gates.values():
            part = torch.from_numpy(by[start : start + gate.beta.numel()]).view(gate.beta.shape)
            gate.beta.add_(part.to(gate.beta))
            start += gate.beta.numel()

    def random_halves(self, count: int) -> list[Mask]:
        """Patterns in which a random half of each group is dead; the same each time."""
        draw = np.random.default_rng(0)
        patterns = []
        for _ in range(count):
            order = np.lexsort((draw.random(self.count), self.group))
            rank = np.empty(self.count, np.int64)
            starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
            rank[order] = np.arange(self.count) - starts[self.group[order]]
            patterns.append(rank < -(-self.sizes[self.group] // 2))
        return patterns

    @torch.no_grad()
    def impose(self, model: nn.Module, alive: Mask) -> None:
        """Give the gates of `model`, a copy of the one these entries are from, values that are zero where dead."""
        start = 0
        for name, gate in self.gates.items():
            part = torch.from_numpy(alive[start : start + gate.alpha.numel()]).double()
            start += gate.alpha.numel()
            copied = model.get_submodule(name)
            assert isinstance(copied, VectorGate)
            copied.set_alive(part.view(-1, gate.group_size))


def _joined(parts: list[Tensor]) -> Any:
    return torch.cat([part.cpu() for part in parts]).numpy()
