"""What a run says early when something goes wrong."""

from typing import Any

import pytest

from diffsparse.methods import Gated, Method, Sparsifying
from diffsparse.penalties.strength import Pace
from diffsparse.training.advice import early_advice
from diffsparse.training.classification import ClassificationObjective
from diffsparse.training.context import Phase
from tests.training.examples import Net

LONG = Pace(total_rate=100.0, momentum=0.9)
SHORT = Pace(total_rate=0.1, momentum=0.9)


def advice(
    *records: dict[str, Any], method: Method | None = None, pace: Pace = LONG, epochs: int = 10, **options: Any
) -> list[str]:
    settings = Sparsifying(**{"strength": 0.01, **options})
    phase = Phase(
        name="train",
        number=1,
        model=Net(),
        method=method or Gated(strength=0.01),
        sparsifying=settings,
        objective=ClassificationObjective(),
        epochs=epochs,
    )
    teacher = {"phase": "teacher", "epoch": 1, "train_loss": 0.1, "zeros": 0.0}
    return early_advice(phase, pace, 20, [teacher, *({"phase": "train", **record} for record in records)])


def epochs(count: int, loss: float = 1.0, zeros: float = 0.5) -> list[dict[str, Any]]:
    first = {"epoch": 1, "train_loss": 2.0, "zeros": 0.0}
    return [first, *({"epoch": epoch, "train_loss": loss, "zeros": zeros} for epoch in range(2, count + 1))]


def test_all_is_well() -> None:
    assert [advice(*epochs(count)) for count in range(1, 11)] == [[]] * 10


def test_a_loss_that_does_not_fall_is_told_once_after_a_quarter() -> None:
    said = [advice(*epochs(count, loss=1.99)) for count in range(1, 11)]
    assert [len(words) for words in said] == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert said[2][0].startswith("after epoch 3 of 10 the loss has not fallen (2 in the first epoch, 1.99 now)")
    assert advice(*epochs(3, loss=1.9)) == []
    assert len(advice(*epochs(10, loss=2.5), epochs=40)) == 1


@pytest.mark.parametrize(("shrunk", "count", "said"), [([5.0], 5, False), ([3.0, 5.5], 6, True), ([], 6, False)])
def test_few_steps_to_recover(shrunk: list[float], count: int, said: bool) -> None:
    records = epochs(count)
    records[-1]["shrunk"] = shrunk
    words = "the network became small with 90 steps left to recover: more epochs would help it"
    assert advice(*records) == [words] * said


def test_no_zeros_at_half_time() -> None:
    said = [advice(*epochs(count, zeros=0.0)) for count in range(1, 11)]
    assert [len(words) for words in said] == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert said[4] == [
        "after epoch 5 of 10 nothing is zero: a larger strength, or a cost (macs) in its place, would make some"
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pace": SHORT}, "the run is too short for any strength: the learning rates of its steps add up to 0.1"),
        ({"strength": 1e-5}, "strength 1e-05 is too small: strength 0.005 (auto) suits a run of this length"),
    ],
)
def test_the_reason_is_too_few_steps_or_too_small_a_lambda(changes: dict[str, Any], reason: str) -> None:
    (words,) = advice(*epochs(5, zeros=0.0), **changes)
    assert words.startswith(f"after epoch 5 of 10 nothing is zero: {reason}")


@pytest.mark.parametrize(
    "changes",
    [
        {"method": Method()},
        {"method": Gated(macs=0.5)},
        {"strength": 0.0},
        {"delay_epochs": 3.0, "ramp_epochs": 3.0},
    ],
    ids=["plain", "budget", "no lambda", "lambda comes late"],
)
def test_zeros_are_not_waited_for_where_none_can_be(changes: dict[str, Any]) -> None:
    assert advice(*epochs(5, zeros=0.0), **changes) == []


def test_no_reason_is_guessed_where_lambda_is_not_alone() -> None:
    decayed = Pace(total_rate=0.1, momentum=0.9, decays=True)
    for changes in ({"pace": decayed}, {"pace": SHORT, "norm": "lp"}):
        (words,) = advice(*epochs(5, zeros=0.0), **changes)
        assert words.endswith("a larger strength, or a cost (macs) in its place, would make some")


def test_a_run_of_a_few_epochs_is_left_alone() -> None:
    assert advice(*epochs(2, loss=3.0, zeros=0.0), epochs=4) == []
