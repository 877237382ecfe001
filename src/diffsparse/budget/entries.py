"""The entries of all gates of a model side by side: which live, how close each is to its threshold, and shifting it."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diffsparse.budget.limits import Mask, Numbers
from diffsparse.errors import SparsityError
from diffsparse.gates import Gate, chosen_gates, named_gates
from diffsparse.gates.vector import VectorGate
from diffsparse.selection import Selection


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
        self._widths = {name: gate.alpha.numel() for name, gate in self.gates.items()}
        sizes = [(gate.alpha.numel() // gate.group_size, gate.group_size) for gate in self.gates.values()]
        self.group = np.repeat(
            np.arange(sum(groups for groups, _ in sizes)), [n for groups, n in sizes for _ in range(groups)]
        )
        """Group of each entry."""
        self.sizes = np.array([n for groups, n in sizes for _ in range(groups)])
        """Entries of each group."""
        self.count = len(self.group)
        self.starts = np.cumsum(self.sizes) - self.sizes
        """First entry of each group."""
        self.without_norm = np.repeat(
            [gate.keeps_sizes for gate in self.gates.values()], [groups for groups, _ in sizes]
        )
        """Groups of gates on heads, neurons, and channels without a batch norm."""
        self.choosable = np.repeat([gate.choosable for gate in self.gates.values()], [groups for groups, _ in sizes])
        """Groups of which any entries can be let live, with the values they have."""
        self.immortal = self.sizes[self.group] == 1
        """Entries that are alone in their group, whose threshold they never reach."""

    def parts(self) -> Iterator[tuple[VectorGate, slice]]:
        """Each gate, with the place of its groups among all."""
        start = 0
        for gate in self.gates.values():
            yield gate, slice(start, start + gate.beta.numel())
            start += gate.beta.numel()

    def within(self, groups: slice) -> slice:
        """The entries of these groups, which lie side by side."""
        return slice(int(self.starts[groups.start]), int(self.starts[groups.stop - 1] + self.sizes[groups.stop - 1]))

    @property
    def know_importance(self) -> bool:
        """Whether entries of a network without batch norms differ, as in a trained one, so that they can be ranked."""
        sizes = [gate.magnitudes() for gate in self.gates.values()]
        return bool(self.without_norm.all()) and any(
            bool((rows.amax(-1) > 1.001 * rows.amin(-1)).any()) for rows in sizes
        )

    def mask(self, chosen: Mapping[str, list[int]]) -> Mask:
        """True for the chosen entries of each gate, given by its name."""
        masks = {name: np.zeros(width, bool) for name, width in self._widths.items()}
        for name, mask in masks.items():
            mask[chosen[name]] = True
        return np.concatenate(list(masks.values()))

    def by_kind(self, alive: Mask) -> dict[str, int]:
        """How many of the live entries are channels, neurons, heads and layers."""
        counts: dict[str, int] = {}
        start = 0
        for name, gate in self.gates.items():
            part, start = alive[start : start + self._widths[name]], start + self._widths[name]
            counts[gate.kind] = counts.get(gate.kind, 0) + int(part.sum())
        return counts

    @torch.no_grad()
    def alive(self) -> Mask:
        """Which entries are not zero."""
        rows = [gate.groups(gate())[0].flatten() for gate in self.gates.values()]
        return np.asarray(_joined(rows) != 0)

    @torch.no_grad()
    def margins(self) -> Numbers:
        """How far the logit of each entry's share lies above its threshold; an entry lives if this is above 0.

        Infinite for the only entry of a group, which cannot die. Raises if a gate is not finite.
        """
        sizes = _joined([gate.magnitudes().flatten() for gate in self.gates.values()]).astype(float)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = sizes / np.add.reduceat(sizes, self.starts)[self.group]
            margins = np.log(shares) - np.log1p(-shares) - self.thresholds()[self.group]
        if np.isnan(margins).any():
            for name, gate in self.gates.items():
                gate.check_finite(name)
            # all of a group's alpha are zero
            margins = np.where(np.isnan(margins), -np.inf, margins)
        return np.where(self.immortal, np.inf, margins)

    @torch.no_grad()
    def thresholds(self) -> Numbers:
        """beta of each group."""
        return np.asarray(_joined([gate.beta.detach().flatten() for gate in self.gates.values()]), float)

    @torch.no_grad()
    def shift(self, by: Numbers) -> None:
        """Add to beta of each group."""
        for gate, part in self.parts():
            if by[part].any():
                gate.shift_threshold(torch.from_numpy(by[part]).view(gate.beta.shape))

    @torch.no_grad()
    def let_live(self, alive: Mask) -> None:
        """Let just these entries live, whatever their size; values of those that live on stay."""
        for gate, part in self.parts():
            own = torch.from_numpy(alive[self.within(part)]).view(-1, gate.group_size).to(gate.alpha.device)
            if not torch.equal(own, gate.groups(gate())[0] != 0):
                gate.let_live(own)

    @torch.no_grad()
    def separate(self, distance: float) -> None:
        """Move the logarithms of neighbouring shares of a group apart, so that a threshold can lie between them."""
        for gate in self.gates.values():
            rank = gate.magnitudes().argsort(stable=True, dim=-1).argsort(-1)
            gate.scale_magnitudes(distance * rank)

    @torch.no_grad()
    def scale(self, logarithms: Numbers) -> None:
        """Multiply the magnitude of each entry by the exponential of its number."""
        start = 0
        for gate in self.gates.values():
            part, start = logarithms[start : start + gate.alpha.numel()], start + gate.alpha.numel()
            if part.any():
                gate.scale_magnitudes(torch.from_numpy(part).view(-1, gate.group_size).to(gate.alpha))

    def one_per_group(self) -> Mask:
        """The first entry of each group alive."""
        mask = np.zeros(self.count, bool)
        mask[self.starts] = True
        return mask

    def in_model(self, model: nn.Module) -> "GateEntries":
        """The entries of the same gates in another model, where some gates may be smaller or gone."""
        return GateEntries({name: gate for name, gate in named_gates(model) if name in self.gates})

    def random_patterns(self, count: int, dead: int = 3) -> list[Mask]:
        """Patterns in which a random one in `dead` entries of each group is dead; the same each time."""
        draw = np.random.default_rng(dead)
        living = np.maximum(self.sizes - np.maximum(self.sizes // dead, 1), 1)
        patterns = []
        for _ in range(count):
            order = np.lexsort((draw.random(self.count), self.group))
            rank = np.empty(self.count, np.int64)
            rank[order] = np.arange(self.count) - self.starts[self.group[order]]
            patterns.append(rank < living[self.group])
        return patterns

    @torch.no_grad()
    def impose(self, model: nn.Module, alive: Mask) -> None:
        """Give the gates of `model`, a copy of the one these entries are from, values that are zero where dead."""
        start = 0
        for name, gate in self.gates.items():
            part = torch.from_numpy(alive[start : start + gate.alpha.numel()]).to(gate.alpha.device)
            start += gate.alpha.numel()
            copied = model.get_submodule(name)
            assert isinstance(copied, VectorGate)
            copied.set_alive(part.view(-1, gate.group_size))


def steered_gates(model: nn.Module, only: Selection | None) -> tuple[dict[str, Gate], list[str]]:
    """The gates that `only` chooses and that are trained, and the names of frozen ones; raises if all are frozen."""
    chosen = chosen_gates(model, only)
    trained = {name: gate for name, gate in chosen.items() if not gate.frozen}
    if not trained:
        raise SparsityError("all gates are frozen, and a budget leaves frozen gates alone; unfreeze some of them")
    return trained, [name for name in chosen if name not in trained]


def _joined(parts: list[Tensor]) -> Any:
    return torch.cat([part.cpu() for part in parts]).numpy()
