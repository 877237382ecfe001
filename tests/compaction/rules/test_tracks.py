"""Tracks of channels against small cases that can be seen at a glance."""

import numpy as np

from diffsparse.compaction.graph import Value
from diffsparse.compaction.rules.tracks import Tracks


def value(*shape: int, axes: tuple[int, ...]) -> Value:
    made = Value(shape)
    made.track(axes)
    return made


def sets(tracks: Tracks) -> list[list[list[int]]]:
    return sorted([track.tolist() for track in several] for several in tracks.interchangeable())


def test_channels_of_a_head_can_trade_places_with_those_of_the_same_head() -> None:
    rows, query, key = value(2, 4, axes=(1,)), value(2, 2, 5, 2, axes=(1, 3)), value(2, 2, 2, 5, axes=(1, 2))
    tracks = Tracks([rows, query, key])
    # a view of the rows as (heads, size), then a product with keys along the size
    tracks.tie(query, rows)
    tracks.tie_grids(query, [0, 1, 2, 3], key, [0, 1, 3, 4])
    for factor, dim in ((query, 3), (key, 2)):
        tracks.any_order(factor, dim)
    assert sets(tracks) == [[[0, 4, 8], [1, 5, 9]], [[2, 6, 10], [3, 7, 11]]]


def test_nothing_trades_places_unless_a_product_allows_it() -> None:
    one, other = value(2, 3, axes=(1,)), value(2, 3, axes=(1,))
    tracks = Tracks([one, other])
    tracks.tie(one, other)
    assert sets(tracks) == []
    tracks.any_order(one, 1)
    assert sets(tracks) == [[[0, 3], [1, 4], [2, 5]]]
    tracks.in_order(other, 1)
    assert sets(tracks) == []


def test_pinned_channels_stay() -> None:
    one, other = value(2, 3, axes=(1,)), value(2, 2, axes=(1,))
    tracks = Tracks([one, other])
    tracks.tie(other, one, among=np.array([0, 2]))
    tracks.any_order(one, 1)
    # what is tied to more than the others does not trade places with them
    assert sets(tracks) == [[[0, 3], [2, 4]]]
    tracks.pin([other])
    assert sets(tracks) == []


def test_what_is_tied_to_something_unknown_stays() -> None:
    one, unknown = value(2, 3, axes=(1,)), value(2, 3, axes=(1,))
    tracks = Tracks([one])
    tracks.any_order(one, 1)
    tracks.tie(unknown, one)
    assert sets(tracks) == []


def test_a_shared_vector_ties_heads_together() -> None:
    heads, vector = value(2, 2, 5, 2, axes=(1, 3)), value(2, axes=(0,))
    tracks = Tracks([heads, vector])
    tracks.tie_grids(heads, [3, 2, 1, 0], vector, [0])
    tracks.any_order(heads, 3)
    assert sets(tracks) == [[[0, 2, 4], [1, 3, 5]]]
