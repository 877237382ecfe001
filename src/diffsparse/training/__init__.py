"""Training from a configuration: every network, data set and method in one loop."""

from diffsparse.methods import Sparsifying
from diffsparse.training.classification import distillation_loss
from diffsparse.training.config import Distillation, Hardware, Optimisation, Recipe, read_recipe, to_toml
from diffsparse.training.context import Watcher
from diffsparse.training.evaluate import DivergenceError
from diffsparse.training.loop import StoppedError
from diffsparse.training.report import RunReport, register_report
from diffsparse.training.run import train
from diffsparse.training.task import Objective, Task, register_task

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
