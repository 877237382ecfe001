"""Which entries a channel needs, from probes with random entries dead."""

import numpy as np
import pytest

from diffsparse.budget.channels import Channels

PATTERNS = np.random.default_rng(0).random((60, 90)) < 0.6


def owners(*channels: tuple[int, ...]) -> list[list[int]]:
    """What is found of channels that live where all of these entries do."""
    signatures = np.stack([PATTERNS[list(entries)].all(0) for entries in channels])
    found = Channels([signatures], PATTERNS)
    return [sorted(entry for entry in entries if entry < len(PATTERNS)) for entries in found.entries.tolist()]


@pytest.mark.parametrize("entries", [(3,), (5, 17), (2, 30, 59)], ids=str)
def test_entries_that_live_together(entries: tuple[int, ...]) -> None:
    assert owners(entries) == [list(entries)]


def test_what_only_many_entries_explain_follows_none() -> None:
    # any odd set of probes is explained by enough entries, which have nothing to do with it
    seen = np.ones(90, bool)
    seen[6:] = np.random.default_rng(1).random(84) < 0.1
    found = Channels([seen[None]], PATTERNS)
    assert (found.entries == len(PATTERNS)).all()


def test_channels_that_need_no_entry_do_not_count_as_steered() -> None:
    signatures = np.stack([PATTERNS[4], np.ones(90, bool)])
    found = Channels([signatures], PATTERNS)
    dead = np.ones(60, bool)
    dead[4] = False
    assert found.counts(dead).tolist() == [1]
    assert found.steered_counts(dead).tolist() == [0]
    assert found.of_layer(0).tolist() == [[4]]
