"""Channels that stay or go together, and which of them could trade places without changing what is computed."""

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from diffsparse.compaction.graph import Value

Channels: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
"""Numbers of channels."""


class Tracks:
    """The channels of many values, tied to each other by the operators between them.

    Rules say by `Rule.tie` which channels of their operands belong together: the third channel of a head of the
    queries, the same one of the keys, and the rows of the layers that make both. All of these are one *track*. Products
    say along which dimension the order does not matter to them.

    Args:
        values: those to look at; values whose channels are not tracked are left out.
    """

    def __init__(self, values: Iterable[Value]) -> None:
        self.values = [value for value in values if value.axes is not None]
        counts = [value.channels for value in self.values]
        starts = np.cumsum([0, *counts])
        self._start = {id(value): int(start) for value, start in zip(self.values, starts, strict=False)}
        self.owner: Channels = np.repeat(np.arange(len(counts)), counts)
        """By the number of a channel among all: the place of its value."""
        self._pinned = np.zeros(len(self.owner), bool)
        self._ties: list[tuple[Channels, Channels]] = []
        self._lines: list[tuple[Channels, Channels]] = []

    def channels(self, value: Value) -> Channels:
        """The numbers of its channels among all."""
        return self._start[id(value)] + np.arange(value.channels)

    def tie(self, one: Value, other: Value, at: Any = None, among: Any = None) -> None:
        """Channels of both are the same ones: all in their order, or those that are given by number."""
        if id(one) not in self._start or id(other) not in self._start:
            self.pin([one, other])
            return
        first, second = self.channels(one), self.channels(other)
        self._ties.append((first if at is None else first[at], second if among is None else second[among]))

    def tie_grids(self, one: Value, own: list[int], other: Value, others: list[int]) -> None:
        """Tie channels of values whose dimensions have these labels, where labels are the same."""
        labels = sorted({*(own[axis] for axis in one.axes or ()), *(others[axis] for axis in other.axes or ())})
        grids = [self._by_labels(value, names, labels) for value, names in ((one, own), (other, others))]
        first, second = np.broadcast_arrays(*grids)
        self._ties.append((first.reshape(-1), second.reshape(-1)))

    def _by_labels(self, value: Value, names: list[int], labels: list[int]) -> Channels:
        assert value.axes is not None
        grid = self.channels(value).reshape([value.shape[axis] for axis in value.axes])
        own = [names[axis] for axis in value.axes]
        grid = grid.transpose(np.argsort(own))
        return grid.reshape([value.shape[names.index(label)] if label in own else 1 for label in labels])

    def pin(self, values: Iterable[Value]) -> None:
        """The order of these channels matters."""
        for value in values:
            if id(value) in self._start:
                self._pinned[self.channels(value)] = True

    def any_order(self, value: Value, dim: int) -> None:
        """Along this dimension, an operator does not care for the order, as long as what is tied has the same."""
        rest = np.arange(value.channels).reshape(value.grid).min(dim, keepdims=True)
        self._stay_in(value, rest)

    def in_order(self, value: Value, dim: int) -> None:
        """Along this dimension, an operator takes each index for itself."""
        others = tuple(other for other in range(len(value.shape)) if other != dim)
        self._stay_in(value, np.arange(value.channels).reshape(value.grid).min(others, keepdims=True))

    def _stay_in(self, value: Value, line: Channels) -> None:
        own = np.broadcast_to(line, value.grid).reshape(-1)
        self._lines.append((self.channels(value), own + len(self._lines) * len(self.owner)))

    def interchangeable(self) -> list[list[Channels]]:
        """Sets of tracks, in their order, that could trade places; a track is given by the numbers of its channels."""
        if not self._lines:
            return []
        label = self._labels()
        met, line = map(np.concatenate, zip(*self._lines, strict=True))
        lines = _grouped(label[met], line)
        tracks = _grouped(label, np.arange(len(label)))
        pinned = {*label[self._pinned].tolist()}
        sets: dict[tuple[bytes, bytes], list[Channels]] = {}
        for name in lines.keys() - pinned:
            # in the same lines of the same products, and of the same values
            where = np.unique(lines[name]).tobytes(), self.owner[tracks[name]].tobytes()
            sets.setdefault(where, []).append(tracks[name])
        return [sorted(several, key=lambda track: int(track[0])) for several in sets.values() if len(several) > 1]

    def _labels(self) -> Channels:
        """For each channel, the first channel of its track."""
        label = np.arange(len(self.owner))
        ties, changed = self._ties, True
        while changed:
            before = label.copy()
            for first, second in ties:
                least = np.minimum(label[first], label[second])
                np.minimum.at(label, first, least)
                np.minimum.at(label, second, least)
            ties, changed = ties[::-1], not np.array_equal(before, label)
        return label


def _grouped(names: Channels, items: Channels) -> dict[int, Channels]:
    """The items of each name, rising."""
    order = np.lexsort((items, names))
    found, starts = np.unique(names[order], return_index=True)
    return dict(zip(found.tolist(), np.split(items[order], starts[1:]), strict=True))
