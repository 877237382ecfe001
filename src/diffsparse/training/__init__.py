"""Training from a configuration: the paper's networks, its method and its baselines in one loop."""

from diffsparse.methods import Sparsifying
from diffsparse.training.classification import distillation_loss
from diffsparse.training.config import Distillation, Hardware, Optimisation, Recipe
from diffsparse.training.divergence import DivergenceError
from diffsparse.training.loop import StoppedError
from diffsparse.training.report import RunReport, register_report
from diffsparse.training.run import train
from diffsparse.training.task import Objective, Task, register_task
from diffsparse.training.toml import read_recipe, to_toml
from diffsparse.training.watcher import Watcher

__all__ = [
    "Distillation",
    "DivergenceError",
    "Hardware",
    "Objective",
    "Optimisation",
    "Recipe",
    "RunReport",
    "Sparsifying",
    "StoppedError",
    "Task",
    "Watcher",
    "distillation_loss",
    "read_recipe",
    "register_report",
    "register_task",
    "to_toml",
    "train",
]
