import numpy as np
import pytest

from diffsparse import SparsityError
from diffsparse.budget.limits import Limits

WHOLE = np.array([1000.0, 200.0, 800.0, 1.0])


def test_shares_and_numbers_mean_the_same() -> None:
    by_share = Limits.asked({"macs": 0.5, "params": None, "bytes": 0.25}, WHOLE)
    by_number = Limits.asked({"macs": 500, "params": None, "bytes": 200}, WHOLE)
    assert by_share.numbers.tolist() == by_number.numbers.tolist() == [500.0, np.inf, 200.0, np.inf]
    assert by_share.shares(WHOLE) == {"macs": 0.5, "bytes": 0.25}


def test_the_limit_that_is_hardest_to_hold_counts() -> None:
    limits = Limits.asked({"macs": 0.5, "params": 0.5}, WHOLE)
    assert limits.excess(np.array([400.0, 120.0, 800.0, 1.0])) == pytest.approx(1.2)


def test_the_way_starts_at_the_whole_and_ends_at_the_limits() -> None:
    limits = Limits.asked({"macs": 0.5}, WHOLE)
    assert limits.on_the_way(WHOLE, 0.0).numbers[0] == 1000
    assert limits.on_the_way(WHOLE, 0.5).numbers[0] == 750
    assert limits.on_the_way(WHOLE, 1.0).numbers.tolist() == [500.0, np.inf, np.inf, np.inf]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"macs": None}, "a budget needs a cost: give one of macs=, params=, bytes=, latency="),
        ({"macs": 0}, "macs must be"),
        ({"macs": -0.5}, "macs must be"),
        ({"params": float("nan")}, "params must be"),
        ({"macs": 1001}, "macs=1001 is more than the whole network costs, 1,000"),
        ({"macs": "half"}, "macs must be"),
    ],
)
def test_bad_limits_get_a_sentence(given: dict[str, float], message: str) -> None:
    with pytest.raises(SparsityError, match=message):
        Limits.asked(given, WHOLE)
