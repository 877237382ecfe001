"""Dataclasses and collections from plain data: what fits is read, what does not is named."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from diffsparse import SparsityError
from diffsparse.plain import from_plain, to_plain


def even(where: str, value: int) -> None:
    if value % 2:
        raise SparsityError(f"{where} must be even, got {value}")


@dataclass(frozen=True, kw_only=True)
class Part:
    size: Annotated[int, even]
    place: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Whole:
    name: str
    parts: dict[str, Part] = field(default_factory=dict)
    sizes: tuple[float, ...] = ()
    pair: tuple[int, int] | None = None
    kind: Literal["a", "b"] = "a"
    by_number: dict[Annotated[int, even], list[int | None]] = field(default_factory=dict)


FULL = Whole(
    name="x",
    parts={"one": Part(size=2, place=Path("here")), "two": Part(size=4)},
    sizes=(1.0, 0.5),
    pair=(3, 1),
    kind="b",
    by_number={0: [1, None]},
)


def test_both_ways() -> None:
    plain = to_plain(FULL)
    assert plain["parts"] == {"one": {"size": 2, "place": "here"}, "two": {"size": 4}}
    plain["by_number"] = {"0": [1, None]}
    assert from_plain(Whole, plain, "it") == FULL
    assert from_plain(Whole, {"name": "x", "sizes": [1, 2]}, "it") == Whole(name="x", sizes=(1.0, 2.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"more": 1}, "it has unknown key 'more'; known are name, parts, sizes"),
        ({"parts": 3}, "'parts' of it must be a table, got 3"),
        ({"parts": {"one": []}}, "'one' of 'parts' of it must be a table, got \\[\\]"),
        ({"parts": {"one": {}}}, "'one' of 'parts' of it has no 'size'"),
        ({"parts": {"one": {"size": 3}}}, "'size' of 'one' of 'parts' of it must be even, got 3"),
        ({"parts": {"one": {"size": True}}}, "'size' of 'one' of 'parts' of it cannot be True"),
        ({"parts": {"one": {"size": 2, "place": 3}}}, "'place' of 'one' of 'parts' of it cannot be 3"),
        ({"sizes": "ab"}, "'sizes' of it must be a list, got 'ab'"),
        ({"sizes": [1, "b"]}, "entry 1 of 'sizes' of it cannot be 'b'"),
        ({"pair": [1]}, "'pair' of it must be a list of 2, got \\[1\\]"),
        ({"kind": "c"}, "'kind' of it cannot be 'c'"),
        ({"kind": ["a"]}, "'kind' of it cannot be \\['a'\\]"),
        ({"by_number": {"x": []}}, "keys of 'by_number' of it must be whole numbers of at least 0, got 'x'"),
        ({"by_number": {"0": [1.0]}}, "entry 0 of '0' of 'by_number' of it cannot be 1.0"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SparsityError, match=f"^{message}"):
        from_plain(Whole, {"name": "x", **change}, "it")


def test_what_is_missing_is_named() -> None:
    with pytest.raises(SparsityError, match=r"^it has no 'name'"):
        from_plain(Whole, {}, "it")
