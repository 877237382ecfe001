"""Live channels of each head in front while widths are found, so that heads are as wide as the widest of them.

Heads must have one width. Which channels a head keeps is its own business, as long as whatever is multiplied with it
keeps the same ones. So channels that could trade places are numbered anew, live ones first. Widths are then found as if
the same channels were dead in all heads, and the old numbers come back. Nothing is moved in the compact model: each
head has its own channels, in their old order.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from diffsparse.compaction.graph import Node, Value
from diffsparse.compaction.masks import Mask
from diffsparse.compaction.rules.dimensions import count_along
from diffsparse.compaction.rules.tracks import Channels, Tracks


@contextmanager
def live_in_front(nodes: list[Node], values: list[Value]) -> Iterator[None]:
    """Masks of values and layers in an order in which live channels of each head come first; the old one at the end."""
    tracks = Tracks(values)
    for node in nodes:
        node.rule.tie(node, tracks)
    places = _new_places(tracks)
    moved = {id(value): own - own.min() for value in tracks.values if _moves(own := places[tracks.channels(value)])}
    _renumber(nodes, tracks.values, {key: np.argsort(own) for key, own in moved.items()})
    yield
    for value in tracks.values:
        if id(value) in moved:
            value.widths = {axis: count_along(value, axis) for axis in value.axes or ()}
    _renumber(nodes, tracks.values, moved)


def _new_places(tracks: Tracks) -> Channels:
    """For each channel, the number of the channel whose place it takes."""
    needed = np.concatenate([value.need for value in tracks.values]) if tracks.values else np.zeros(0, bool)
    places = np.arange(len(needed))
    for several in tracks.interchangeable():
        live_first = sorted(several, key=lambda track: not needed[track].any())
        for track, place in zip(live_first, several, strict=True):
            places[track] = place
    return places


def _moves(places: Channels) -> bool:
    return bool((np.diff(places) != 1).any())


def _renumber(nodes: list[Node], values: list[Value], orders: dict[int, Channels]) -> None:
    for value in values:
        if (order := orders.get(id(value))) is not None:
            value.need, value.keep = value.need[order], value.keep[order]
    for layer in (node.layer for node in nodes if node.layer is not None):
        if (order := orders.get(id(layer.output))) is not None:
            layer.rows, layer.mapped_rows = layer.rows[order], _taken(layer.mapped_rows, order)
        if (order := orders.get(id(layer.operand))) is not None:
            layer.columns, layer.mapped_columns = layer.columns[order], _taken(layer.mapped_columns, order)


def _taken(mask: Mask | None, order: Channels) -> Mask | None:
    return None if mask is None else mask[order]
