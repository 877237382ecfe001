"""Compaction never changes the function: random networks by seed, compared with what they were."""

import pytest

from tests.compaction.check import check
from tests.compaction.fuzz import explain
from tests.compaction.networks import Spec, build, inputs, options, specification

NETWORKS, CHUNK = 240, 10


@pytest.mark.parametrize("first", range(0, NETWORKS, CHUNK))
def test_compaction_keeps_the_function(first: int) -> None:
    failures = []
    for seed in range(first, first + CHUNK):
        outcome = check(specification(seed))
        if outcome.problem:
            # one reduced case a chunk keeps a broken rule from taking minutes
            failures.append(explain(specification(seed), outcome, seconds=0.0 if failures else 5.0))
        elif outcome.falls_back:
            failures.append(f"seed {seed}: the first attempt failed: {outcome.detail}")
    assert not failures, "\n\n".join(failures)


@pytest.mark.parametrize("seed", [1_000_820, 1_005_732, 1_005_893, 1_006_909])
def test_what_long_runs_have_found(seed: int) -> None:
    outcome = check(specification(seed))
    assert not outcome.problem, outcome
    assert not outcome.falls_back, outcome


@pytest.mark.parametrize("seed", range(5))
def test_a_specification_is_plain_data(seed: int) -> None:
    spec = specification(seed)
    assert Spec.from_json(spec.to_json()) == spec
    again = Spec.from_json(options(spec).to_json())
    first, second = build(spec), build(again)
    assert {name: t.tolist() for name, t in first.state_dict().items()} == {
        name: t.tolist() for name, t in second.state_dict().items()
    }
    assert inputs(spec, first)[0].equal(inputs(again, second)[0])
