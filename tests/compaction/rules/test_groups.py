"""Groups of one size, and groups of different sizes."""

import numpy as np
import pytest

from diffsparse.compaction.rules.groups import MOST_RAGGED_GROUPS, ragged_pays, regular


def mask(bits: str) -> np.ndarray:
    return np.array([bit == "1" for bit in bits.replace(" ", "")])


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        ("11 11", "11 11", ("11 11", "11 11")),
        ("00 10", "11 11", ("00 10", "00 11")),
        ("01 11", "100 010", ("11 11", "100 010")),
        ("01 10", "000 011", ("01 10", "110 011")),
        ("01 10", "000 000", ("01 10", "100 100")),
        ("00 00", "11 11", ("00 00", "00 00")),
    ],
)
def test_live_groups_are_filled_up_to_the_largest(rows: str, columns: str, expected: tuple[str, str]) -> None:
    got = regular(mask(rows), mask(columns), 2)
    assert [part.tolist() for part in got] == [mask(part).tolist() for part in expected]


def test_different_sizes_pay_if_they_save_enough_and_are_few() -> None:
    full, half = mask("1111 1111"), mask("1111 1000")
    assert ragged_pays((half, half), (full, full), 2)
    assert not ragged_pays((full, full), (full, full), 2)
    assert not ragged_pays((mask("1111 0000"),) * 2, (full, full), 2)
    many = MOST_RAGGED_GROUPS + 1
    assert not ragged_pays((np.tile(mask("1000"), many),) * 2, (np.ones(4 * many, bool),) * 2, many)
