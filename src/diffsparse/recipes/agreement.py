"""Whether our rows agree with reported ones: in sign against the base row, in order, and in what was claimed."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import hypot
from typing import Literal

from diffsparse.recipes.results import RowValues, Value
from diffsparse.recipes.table import Claim, Table

Verdict = Literal["agrees", "undecided", "differs", "open"]
"""Undecided: our difference is smaller than its spread. Open: a run, or a reported number, is missing."""
MARKS: dict[Verdict, str] = {"agrees": "✓", "undecided": "~", "differs": "✗", "open": "?"}


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim and what became of it."""

    claim: Claim
    reported: Verdict
    """Whether the reported numbers bear it out; open where there are none."""
    ours: Verdict
    numbers: str
    """Our two numbers, as text."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """Pairs of rows whose order was reported, and how many of them have the same order in our runs."""

    agreeing: int = 0
    undecided: int = 0
    reversed: tuple[tuple[str, str], ...] = ()
    """Pairs whose order is the other way round; the first is the smaller one as reported."""

    @property
    def total(self) -> int:
        return self.agreeing + self.undecided + len(self.reversed)


def compare(first: Value, second: Value) -> int:
    """-1 if the first is smaller, 1 if larger, 0 if the difference is within the two spreads together.

    Example:
        >>> compare(Value(value=5.69, spread=0.1), Value(value=6.54, spread=0.18))
        -1
        >>> compare(Value(value=5.10, spread=0.16), Value(value=5.08, spread=0.06))
        0
    """
    difference = first.value - second.value
    if abs(difference) <= hypot(first.spread or 0.0, second.spread or 0.0):
        return 0
    return 1 if difference > 0 else -1


def sign(table: Table, rows: Mapping[str, RowValues], name: str) -> Verdict:
    """Whether a row lies on the same side of the base row as reported, in the headline column."""
    if table.base is None or name == table.base:
        return "open"
    return _same_order(rows[name], rows[table.base], table.headline)


def order(table: Table, rows: Mapping[str, RowValues]) -> Order:
    """How the headline column orders our rows, compared with the reported order."""
    counts: dict[Verdict, int] = dict.fromkeys(MARKS, 0)
    turned: list[tuple[str, str]] = []
    for one, other in combinations(rows, 2):
        verdict = _same_order(rows[one], rows[other], table.headline)
        counts[verdict] += 1
        if verdict == "differs":
            values = rows[one].reported[table.headline].value, rows[other].reported[table.headline].value
            turned.append((one, other) if values[0] < values[1] else (other, one))
    return Order(agreeing=counts["agrees"], undecided=counts["undecided"], reversed=tuple(turned))


def judge(claim: Claim, rows: Mapping[str, RowValues]) -> Judged:
    """Whether a claim holds, as reported and in our runs."""
    smaller = rows[claim.smaller]
    limit = None if claim.limit is None else Value(value=claim.limit)
    reported = _pair(smaller.reported, rows[claim.larger].reported if claim.larger else {}, claim.column, limit)
    ours = _pair(smaller.ours, rows[claim.larger].ours if claim.larger else {}, claim.column, limit)
    numbers = f"{ours[0].value:.4g} against {ours[1].value:.4g}" if ours else ""
    verdicts = [_holds(pair, within=claim.limit is not None) for pair in (reported, ours)]
    return Judged(claim=claim, reported=verdicts[0], ours=verdicts[1], numbers=numbers)


def _pair(
    first: Mapping[str, Value], second: Mapping[str, Value], column: str, limit: Value | None
) -> tuple[Value, Value] | None:
    other = second.get(column) if limit is None else limit
    return (first[column], other) if column in first and other is not None else None


def _holds(pair: tuple[Value, Value] | None, *, within: bool) -> Verdict:
    if pair is None:
        return "open"
    # what lies on a limit keeps it; of two equal rows none is the smaller one
    if within and pair[0].value == pair[1].value:
        return "agrees"
    verdicts: dict[int, Verdict] = {-1: "agrees", 0: "undecided", 1: "differs"}
    return verdicts[compare(*pair)]


def _same_order(one: RowValues, other: RowValues, column: str) -> Verdict:
    """Whether two rows are in the same order as reported; open where nothing was reported, or no order."""
    if not all(column in values for row in (one, other) for values in (row.reported, row.ours)):
        return "open"
    expected = compare(one.reported[column], other.reported[column])
    found = compare(one.ours[column], other.ours[column])
    if expected == 0:
        return "open"
    if found == 0:
        return "undecided"
    return "agrees" if found == expected else "differs"
