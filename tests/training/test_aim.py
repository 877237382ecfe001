import math
from pathlib import Path

import pytest
from torch import Tensor, nn

from diffsparse.training import Optimisation, Recipe, Sparsifying, train
from diffsparse.training.aim import Aim
from diffsparse.training.log import Log


def test_fixed() -> None:
    aim = Aim(Sparsifying(strength=0.3), epochs=10)
    aim.look(5.0, 0.0, 0.2)
    assert [aim.strength(epoch) for epoch in (0, 5.5, 10)] == [0.3] * 3


def test_ramp_is_the_cubic_of_the_paper() -> None:
    aim = Aim(Sparsifying(strength=0.3, ramp_epochs=4), epochs=10)
    expected = [0.3 - 0.3 * (1 - epoch / 4) ** 3 for epoch in (0, 0.5, 1, 3.9, 4)] + [0.3]
    assert [aim.strength(epoch) for epoch in (0, 0.5, 1, 3.9, 4, 9)] == pytest.approx(expected)


def test_steering_by_hand_worked_numbers() -> None:
    # halfway to the time when the target is due, 1 - (1/2)^3 = 7/8 of it are wanted
    aim = Aim(Sparsifying(strength=1.0, target=0.8), epochs=40)
    aim.look(10, 0.5, passed=0.5)
    assert aim.share == 1.0
    assert aim.factor == pytest.approx(2 ** (48 * 0.2 * 0.5 / 40))
    aim.look(10, 0.65, passed=0.5)
    assert aim.share == pytest.approx(0.05 * 8)
    # too many zeros: lambda is taken away at once, what it was is forgotten slowly
    before = aim.factor
    aim.look(30, 0.9, passed=0.5)
    assert aim.strength(30) == 0
    assert aim.factor == pytest.approx(before * 2 ** (-48 * 0.1 * 0.5 / 40))


def test_steering_stays_within_bounds_and_multiplies_the_ramp() -> None:
    aim = Aim(Sparsifying(strength=0.01, target=1.0, ramp_epochs=2), epochs=4)
    for _ in range(100):
        aim.look(4, 0.0, passed=0.2)
    assert aim.strength(4) == pytest.approx(0.16)
    assert aim.strength(1) == pytest.approx(0.16 * 0.875)
    for _ in range(100):
        aim.look(0, 1.0, passed=0.2)
    aim.share = 1.0
    assert aim.strength(4) == pytest.approx(0.01 / 16)
    assert math.isfinite(aim.factor)


def test_a_delay_comes_before_everything() -> None:
    aim = Aim(Sparsifying(strength=0.3, delay_epochs=3, ramp_epochs=4), epochs=10)
    assert [aim.strength(epoch) for epoch in (0, 2.9, 3)] == [0.0, 0.0, 0.0]
    assert aim.strength(5) == pytest.approx(0.3 * 0.875)
    assert aim.strength(7) == pytest.approx(0.3)
    steered = Aim(Sparsifying(strength=0.3, delay_epochs=3, target=0.5), epochs=10)
    steered.look(2, 0.0, passed=0.2)
    assert (steered.factor, steered.share, steered.strength(2)) == (1.0, 1.0, 0.0)
    steered.look(8, 0.0, passed=0.2)
    assert steered.strength(8) > 0.3


def test_the_last_epochs_are_without_lambda() -> None:
    aim = Aim(Sparsifying(strength=0.3, delay_epochs=2, settle_epochs=3), epochs=10)
    assert [aim.strength(epoch) for epoch in (1.9, 2, 6.99, 7, 9.9)] == [0.0, 0.3, 0.3, 0.0, 0.0]
    assert not Aim(Sparsifying(strength=0.3), epochs=10).over(9.9)


def test_zeros_of_proximal_steps_stay_when_lambda_ends(tmp_path: Path) -> None:
    zeros = {}
    for settle in (0.0, 2.0):
        recipe = Recipe(
            model=f"{__name__}:Wide",
            epochs=4,
            batch_size=128,
            optimisation=Optimisation(learning_rate=0.2),
            sparsifying=Sparsifying(method="proximal-l1", strength=0.3, settle_epochs=settle),
        )
        train(recipe, tmp_path / f"{settle}")
        zeros[settle] = [record["zeros"] for record in Log(path=tmp_path / f"{settle}" / "log.jsonl").records()]
    assert zeros[0.0][:2] == zeros[2.0][:2]
    assert 0.1 < zeros[2.0][1] < 1
    assert zeros[2.0][2:] == [zeros[2.0][1]] * 2 != zeros[0.0][2:]


def test_lambda_of_proximal_steps_stays_in_force_until_it_settles_for_good() -> None:
    aim = Aim(Sparsifying(method="proximal-l1", strength=0.3, target=0.5), epochs=10, settles=True)
    aim.look(2, 0.45, passed=0.2)
    assert aim.factor == pytest.approx(2 ** (48 * (0.5 * (1 - 0.6**3) - 0.45) * 0.2 / 10))
    assert (aim.share, aim.settled) == (1.0, False)
    # late: lambda grows as if half of all zeros were missing, beyond the bounds of gates
    before = aim.factor
    aim.look(8, 0.45, passed=0.2)
    assert aim.factor == pytest.approx(before * 2 ** (48 * 0.5 * 0.2 / 10))
    for _ in range(20):
        aim.look(8, 0.45, passed=0.2)
    assert aim.factor > 100
    aim.settle()
    aim.look(9, 0.1, passed=0.2)
    assert aim.settled
    assert aim.strength(9) == 0


class Wide(nn.Module):
    """Three convolutions with channels to spare."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels, stride in ((1, 2), (width, 1), (width, 1)):
            layers += [nn.Conv2d(channels, width, 3, stride, 1), nn.BatchNorm2d(width), nn.ReLU()]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x).mean((2, 3)))
        return logits


@pytest.mark.parametrize(
    ("method", "target", "strength"),
    [
        ("proximal-l1", 0.25, 0.01),
        ("proximal-l1", 0.5, 0.03),
        ("proximal-l21", 0.5, 0.03),
        ("proximal-l12", 0.4, 0.01),
    ],
)
def test_proximal_methods_reach_their_target(method: str, target: float, strength: float, tmp_path: Path) -> None:
    recipe = Recipe(
        model=f"{__name__}:Wide",
        epochs=14,
        batch_size=128,
        optimisation=Optimisation(learning_rate=0.2),
        sparsifying=Sparsifying(method=method, strength=strength, target=target, group_size=4),
    )
    result = train(recipe, tmp_path)
    # at least the target, and at most one channel more, or one group
    more = result["zeros"]["zero"] - target * result["zeros"]["total"]
    assert 0 <= more < (4 if method == "proximal-l21" else 1)
    assert result["figures"]["compact"]["accuracy"] > 0.9
    assert result["cost"]["compact"]["macs"] < (1 - target) * result["cost"]["plain"]["macs"]
    assert Log(path=tmp_path / "log.jsonl").records()[-1]["strength"] == 0


@pytest.mark.parametrize(("target", "strength"), [(0.25, 0.01), (0.4, 0.02)])
def test_digits_get_the_share_of_zeros_that_was_asked_for(target: float, strength: float, tmp_path: Path) -> None:
    recipe = Recipe(
        model=f"{__name__}:Wide",
        epochs=18,
        batch_size=128,
        optimisation=Optimisation(learning_rate=0.2),
        sparsifying=Sparsifying(strength=strength, target=target),
    )
    result = train(recipe, tmp_path)
    assert result["zeros"]["fraction"] == pytest.approx(target, abs=0.06)
    assert result["figures"]["compact"]["accuracy"] > 0.9
    assert result["cost"]["compact"]["macs"] < (1 - target) * result["cost"]["plain"]["macs"]
    assert len({record["strength"] for record in Log(path=tmp_path / "log.jsonl").records()}) > 10
