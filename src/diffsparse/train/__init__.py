"""Training from a configuration: the paper's networks, its method and its baselines in one loop."""

from diffsparse.train.config import Distillation, Hardware, Optimisation, Recipe, Sparsifying
from diffsparse.train.distillation import distillation_loss
from diffsparse.train.divergence import DivergenceError
from diffsparse.train.loop import StoppedError
from diffsparse.train.run import run
from diffsparse.train.toml import read_recipe, to_toml
from diffsparse.train.watcher import Watcher

__all__ = [
    "Distillation",
    "DivergenceError",
    "Hardware",
    "StoppedError",
    "Optimisation",
    "Recipe",
    "Sparsifying",
    "Watcher",
    "distillation_loss",
    "read_recipe",
    "run",
    "to_toml",
]
