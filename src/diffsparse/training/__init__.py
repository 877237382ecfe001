"""Training from a configuration: the paper's networks, its method and its baselines in one loop."""

from diffsparse.training.config import Distillation, Hardware, Optimisation, Recipe, Sparsifying
from diffsparse.training.distillation import distillation_loss
from diffsparse.training.divergence import DivergenceError
from diffsparse.training.loop import StoppedError
from diffsparse.training.run import train
from diffsparse.training.toml import read_recipe, to_toml
from diffsparse.training.watcher import Watcher

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
    "to_toml",
    "train",
]
