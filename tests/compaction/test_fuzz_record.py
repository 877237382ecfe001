"""A long run of random networks can be done in pieces."""

from pathlib import Path

from tests.compaction.check import Outcome
from tests.compaction.fuzz_record import Record, fingerprint


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    path, first = tmp_path / "fuzz.json", Record(source=fingerprint())
    first.add_range(range(10, 20), 1.0)
    first.add_range(range(20, 25), 0.5)
    first.add_range(range(40, 50), 0.5)
    first.write(path)
    again = Record.read(path)
    assert again == first
    assert again.done == [[10, 25], [40, 50]]
    assert list(again.missing(0, 60, 12)) == [range(10), range(25, 37), range(37, 40), range(50, 60)]
    assert list(again.missing(12, 8, 5)) == []
    assert list(again.missing(20, 10, 100)) == [range(25, 30)]


def test_a_record_of_another_source_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "fuzz.json"
    Record(source="another", done=[[0, 5]]).write(path)
    assert Record.read(path).done == []


def test_outcomes_are_counted() -> None:
    record = Record(source="")
    for seed, outcome in enumerate(
        [
            Outcome(attempts=1, before=10, after=4),
            Outcome("compact: SparsityError"),
            Outcome("outputs differ", attempts=1),
            Outcome(attempts=2, hard=True),
            Outcome(attempts=2),
            Outcome(skipped=True),
        ]
    ):
        record.add(seed, outcome)
    counts = (record.networks, record.refused, record.wrong, record.fallbacks, record.unexplained, record.skipped)
    assert counts == (6, 1, 1, 2, 1, 1)
    assert record.parameters == [10, 4]
    assert list(record.problems) == ["1", "2", "4"]
