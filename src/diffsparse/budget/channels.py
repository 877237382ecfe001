"""Which gate entries each channel of a layer needs to live, found from recordings in which random entries are dead."""

from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from diffsparse.budget.limits import Mask, Numbers

Entries: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

MOST_FOR_THREE = 40
"""Three entries are looked for among so many at most."""


class Channels:
    """The outputs, or the inputs, of all layers: which entries each of them needs to live.

    Args:
        signatures: per layer, for each channel, in which probes it was there.
        patterns: (entries, probes), which entries lived in which probe.
    """

    def __init__(self, signatures: list[Mask], patterns: Mask) -> None:
        self.entry_count, self._layers = len(patterns), len(signatures)
        owners = _Owners(patterns)
        found = [[owners.of(signature) for signature in layer if signature.any()] for layer in signatures]
        self.layers = np.repeat(np.arange(self._layers), [len(layer) for layer in found])
        """Layer of each channel."""
        self.clear = owners.distinct and not owners.doubts
        """Whether no other entries could explain what was seen."""
        channels = [entries for layer in found for entries in layer]
        widest = max(map(len, channels), default=0) or 1
        always = self.entry_count
        self.entries = np.array([[*e, *[always] * (widest - len(e))] for e in channels], np.int64).reshape(-1, widest)
        """Entries that each channel needs; one past the last stands for none."""

    def _alive(self, alive: Mask) -> Mask:
        return np.append(alive, True)[self.entries]

    def keep(self, kept: Mask) -> None:
        """Forget entries that are dead for good, and the channels that needed them; the others are numbered anew."""
        stays = np.append(kept, True)[self.entries].all(1)
        number = np.append(np.cumsum(kept) - 1, kept.sum())
        self.layers, self.entries = self.layers[stays], number[self.entries[stays]]
        self.entry_count = int(kept.sum())

    def of_layer(self, layer: int) -> Entries:
        """The entries that each channel of a layer needs, if it needs any; one past the last stands for none."""
        return np.asarray(self.entries[(self.layers == layer) & self._steered])

    @property
    def _steered(self) -> Mask:
        """Channels that need entries."""
        return np.asarray((self.entries < self.entry_count).any(1))

    def steered_counts(self, alive: Mask) -> Numbers:
        """Live channels of each layer among those that need entries."""
        lives = (self._alive(alive).all(1) & self._steered).astype(float)
        return np.asarray(np.bincount(self.layers, weights=lives, minlength=self._layers), float)

    def counts(self, alive: Mask) -> Numbers:
        """Live channels of each layer."""
        lives = self._alive(alive).all(1).astype(float)
        return np.asarray(np.bincount(self.layers, weights=lives, minlength=self._layers), float)

    def spread(self, alive: Mask, by_layer: Numbers) -> Numbers:
        """What each entry decides on, if a channel of a layer is worth `by_layer`: channels that need nothing else."""
        lives = self._alive(alive)
        others = lives.sum(1, keepdims=True) - lives == lives.shape[1] - 1
        worth = np.where(others, by_layer[self.layers][:, None], 0.0)
        total = np.bincount(self.entries.ravel(), weights=worth.ravel(), minlength=self.entry_count + 1)
        return np.asarray(total[: self.entry_count], float)


class _Owners:
    """Finds the entries that a channel needs from the probes in which it was there."""

    def __init__(self, patterns: Mask) -> None:
        self._patterns = patterns
        self._found: dict[bytes, tuple[int, ...]] = {p.tobytes(): (entry,) for entry, p in enumerate(patterns)}
        # those that are alone in their group never die, and look alike
        self.distinct = len(self._found) == len(patterns) - max(int(patterns.all(1).sum()) - 1, 0)
        """Whether all entries that can die look different."""
        self.doubts = False
        """Whether a channel was seen with too many entries, some of them by chance."""

    def of(self, signature: Mask) -> tuple[int, ...]:
        """The entries; none for a channel that is always there, or that follows no entries together."""
        if signature.all():
            return ()
        key = signature.tobytes()
        if key not in self._found:
            self._found[key] = self._together(signature)
        return self._found[key]

    def _together(self, signature: Mask) -> tuple[int, ...]:
        """Two or three entries that live together exactly where the channel is there; more would fit by chance."""
        covering = np.flatnonzero(~(signature & ~self._patterns).any(1))
        dead = ~self._patterns[covering][:, ~signature]
        if not dead.any(0).all():
            return ()
        for first, own in enumerate(dead):
            others = dead[first + 1 :]
            if len(fits := np.flatnonzero((own | others).all(1))):
                return self._chosen(covering, first, first + 1 + int(fits[0]))
        for first, second in combinations(range(len(covering) if len(covering) <= MOST_FOR_THREE else 0), 2):
            both = dead[first] | dead[second]
            if len(fits := np.flatnonzero((both | dead[second + 1 :]).all(1))):
                return self._chosen(covering, first, second, second + 1 + int(fits[0]))
        self.doubts = self.doubts or len(covering) > MOST_FOR_THREE
        return ()

    def _chosen(self, covering: Entries, *places: int) -> tuple[int, ...]:
        self.doubts = self.doubts or len(covering) > len(places)
        return tuple(int(covering[place]) for place in places)
