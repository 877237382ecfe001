"""Whole runs whose lambda is steered, or ends early."""

from pathlib import Path

import pytest
from torch import Tensor, nn

from diffsparse.training import Optimisation, Recipe, Sparsifying, train
from diffsparse.training.folder import Log


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
    # it is steered until the target is reached, and how soon that is depends on the last bits of a processor
    assert len({record["strength"] for record in Log(path=tmp_path / "log.jsonl").records()}) > 5


@pytest.mark.parametrize(
    "optimisation",
    [
        Optimisation(learning_rate=0.2),
        Optimisation(learning_rate=1.0, momentum=0.0, nesterov=False),
        Optimisation(optimizer="adam", learning_rate=0.05),
    ],
    ids=["momentum", "no momentum", "adam"],
)
def test_auto_gives_a_sensible_share_of_zeros(optimisation: Optimisation, tmp_path: Path) -> None:
    recipe = Recipe(
        model=f"{__name__}:Wide",
        epochs=18,
        batch_size=128,
        optimisation=optimisation,
        sparsifying=Sparsifying(strength="auto"),
    )
    result = train(recipe, tmp_path)
    assert 0.1 < result["zeros"]["fraction"] < 0.8
    assert result["figures"]["compact"]["accuracy"] > 0.9
    assert result["strength"] == Log(path=tmp_path / "log.jsonl").records()[-1]["strength"] > 0
    assert result["config"]["sparsifying"]["strength"] == "auto"
