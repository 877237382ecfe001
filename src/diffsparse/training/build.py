"""The network of a recipe, from its name or from the user's own class, built for its data."""

import torch
from torch import nn

from diffsparse.data.dataset import DataSet
from diffsparse.errors import SparsityError
from diffsparse.methods import Sparsifying
from diffsparse.models.factory import parse_arguments
from diffsparse.training.task import TASKS
from diffsparse.undisturbed import undisturbed


def build_model(name: str, arguments: str, data: DataSet, seed: int, settings: Sparsifying | None = None) -> nn.Module:
    """A fresh network for `data` with weights drawn from `seed`; raises if it does not fit the data.

    `arguments` is a JSON object of keyword arguments; the task of the data adds what it knows.
    """
    torch.manual_seed(seed)
    settings = settings or Sparsifying(method="plain")
    model = TASKS.find(data.task).build(name, parse_arguments(arguments), data, settings)
    try:
        with undisturbed(model, device=torch.device("cpu")):
            outputs = model(data.example(2))
    except (RuntimeError, ValueError) as error:
        raise SparsityError(f"{name} does not run on inputs of shape {data.input_shape}: {error}") from error
    shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if shape != (wanted := (2, *data.output_shape)):
        raise SparsityError(f"{name} gives {shape} for 2 inputs of {data.name}, which needs {wanted}")
    return model
