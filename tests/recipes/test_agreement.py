"""Made-up results whose agreement is known."""

from typing import Any

import pytest

from diffsparse.recipes.agreement import judge, order, sign
from diffsparse.recipes.results import RowValues, Value
from diffsparse.recipes.table import Claim, Row, Table

TABLE = Table(title="made up", base="base", rows=tuple(Row(name=name) for name in ("base", "a", "b", "c")))


def values(reported: dict[str, tuple[float, float]], ours: dict[str, tuple[float, float]]) -> dict[str, RowValues]:
    def read(pairs: dict[str, tuple[float, float]], name: str) -> dict[str, Value]:
        return {"error": Value(value=pairs[name][0], spread=pairs[name][1])} if name in pairs else {}

    return {row.name: RowValues(reported=read(reported, row.name), ours=read(ours, row.name)) for row in TABLE.rows}


# base below a, a and b the same, c far above
REPORTED = {"base": (5.0, 0.1), "a": (6.0, 0.1), "b": (6.05, 0.1), "c": (9.0, 0.1)}


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ({"base": (30.0, 1.0), "a": (33.0, 1.0)}, "agrees"),
        ({"base": (30.0, 1.0), "a": (31.0, 1.0)}, "undecided"),
        ({"base": (30.0, 1.0), "a": (27.0, 1.0)}, "differs"),
        ({"base": (30.0, 1.0)}, "open"),
    ],
)
def test_sign_against_the_base(ours: dict[str, Any], expected: str) -> None:
    assert sign(TABLE, values(REPORTED, ours), "a") == expected
    assert sign(TABLE, values(REPORTED, ours), "base") == "open"


def test_order_of_all_pairs() -> None:
    rows = values(REPORTED, {"base": (30.0, 0.1), "a": (29.0, 0.1), "b": (40.0, 0.1), "c": (40.05, 0.1)})
    found = order(TABLE, rows)
    # a against b was never decided; of the other five, base and a are the other way round, b and c too close to tell
    assert (found.total, found.agreeing, found.undecided) == (5, 3, 1)
    assert found.reversed == (("base", "a"),)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((1.0, 0.1), (2.0, 0.1), "agrees"),
        ((2.0, 0.1), (1.0, 0.1), "differs"),
        ((2.0, 1.0), (1.0, 1.0), "undecided"),
        ((0.0, 0.0), (0.0, 0.0), "undecided"),
    ],
)
def test_claims_about_two_rows(first: Any, second: Any, expected: str) -> None:
    claim = Claim(text="a is better", column="error", smaller="a", larger="c")
    found = judge(claim, values(REPORTED, {"a": first, "c": second}))
    assert (found.reported, found.ours) == ("agrees", expected)
    assert judge(claim, values({}, {"a": first, "c": second})).reported == "open"
    assert judge(claim, values(REPORTED, {"a": first})).ours == "open"


def test_claims_about_a_number() -> None:
    claim = Claim(text="a is small", column="error", smaller="a", limit=10.0)
    assert judge(claim, values(REPORTED, {"a": (10.0, 0.0)})).ours == "agrees"
    assert judge(claim, values(REPORTED, {"a": (10.5, 0.1)})).ours == "differs"
