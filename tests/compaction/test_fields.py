"""Readers return what fits and name what does not."""

from typing import Any

import pytest

from diffsparse import SparsityError
from diffsparse.compaction.fields import (
    Reader,
    count,
    counts,
    each,
    mapping,
    of_kind,
    one_of,
    or_none,
    pair,
    read_fields,
    rising,
    rising_by_dim,
    sequence,
)


@pytest.mark.parametrize(
    ("reader", "value", "expected"),
    [
        (count, 0, 0),
        (counts, [2, 0, 2], [2, 0, 2]),
        (pair, [3, 1], (3, 1)),
        (rising, [], []),
        (rising, [0, 4], [0, 4]),
        (rising_by_dim, {"0": [1], "1": []}, {0: [1], 1: []}),
        (mapping, {}, {}),
        (sequence, [None], [None]),
        (of_kind(bool, "true or false"), False, False),
        (one_of("a", "b"), "b", "b"),
        (or_none(count), None, None),
        (each(or_none(count)), [None, 3], [None, 3]),
    ],
)
def test_right_values(reader: Reader, value: Any, expected: Any) -> None:
    assert reader("it", value) == expected


@pytest.mark.parametrize(
    ("reader", "value"),
    [
        (count, -1),
        (count, True),
        (count, 1.0),
        (counts, 3),
        (pair, [1]),
        (rising, [1, 0]),
        (rising, [1, 1]),
        (rising_by_dim, {"-1": []}),
        (mapping, []),
        (sequence, "ab"),
        (of_kind(bool, "true or false"), 0),
        (one_of("a", "b"), ["a"]),
        (or_none(count), "x"),
    ],
)
def test_wrong_values(reader: Reader, value: Any) -> None:
    with pytest.raises(SparsityError, match=r"^it must be"):
        reader("it", value)


def test_fields_unknown_or_missing() -> None:
    readers = {"a": count, "b": count}
    assert read_fields("x", {"b": 1}, readers) == {"b": 1}
    with pytest.raises(SparsityError, match="'x' has an unknown field 'c'"):
        read_fields("x", {"c": 1}, readers)
    with pytest.raises(SparsityError, match="'x' has no 'a'"):
        read_fields("x", {"b": 1}, readers, required=("a",))
    with pytest.raises(SparsityError, match="'b' of 'x' must be a whole number"):
        read_fields("x", {"b": "1"}, readers)
