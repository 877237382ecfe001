import shlex
from pathlib import Path

import pytest
import tyro

from diffsparse.cli.train import Train
from diffsparse.training import Distillation, Hardware, Optimisation, Recipe, Sparsifying
from diffsparse.training.command import train_command

RECIPES = [
    Recipe(),
    Recipe(model="densenet40", arguments='{"growth": 6}', data="cifar10", data_root=Path("my data"), augment=False),
    Recipe(optimisation=Optimisation(milestones=(0.3, 0.6), schedule="steps", nesterov=False, learning_rate=1e-5)),
    Recipe(sparsifying=Sparsifying(macs=0.25, params=1e6, due=0.4)),
    Recipe(sparsifying=Sparsifying(method="slimming", strength=1e-4, target=0.4, retrain_epochs=3)),
    Recipe(sparsifying=Sparsifying(strength="auto", norm="l1"), hardware=Hardware(threads=2, compile=True)),
    Recipe(distillation=Distillation(teacher="train", teacher_epochs=2, alpha=0.7), seed=7),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=range(len(RECIPES)))
def test_the_command_gives_the_recipe_again(recipe: Recipe) -> None:
    program, command, *flags = shlex.split(train_command(recipe))
    assert (program, command) == ("diffsparse", "train")
    assert tyro.cli(Train, args=flags).recipe == recipe
