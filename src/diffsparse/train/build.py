"""The network of a recipe, from its name or from the user's own class."""

import torch
from torch import nn

from diffsparse.data.dataset import DataSet
from diffsparse.errors import SparsityError
from diffsparse.models.named import make_named, parse_arguments


def build_model(name: str, arguments: str, data: DataSet, seed: int) -> nn.Module:
    """A fresh network for `data`, its weights drawn from `seed`; raises if it does not fit the data."""
    torch.manual_seed(seed)
    keywords = parse_arguments(arguments)
    if ":" not in name:
        keywords = {"num_classes": data.num_outputs, "in_channels": data.input_shape[0]} | keywords
    model = make_named(name, keywords)
    _check_fit(model, name, data)
    return model


@torch.no_grad()
def _check_fit(model: nn.Module, name: str, data: DataSet) -> None:
    training = model.training
    try:
        outputs = model.eval()(torch.zeros(2, *data.input_shape))
    except (RuntimeError, ValueError) as error:
        raise SparsityError(f"{name} does not run on images of shape {data.input_shape}: {error}") from error
    finally:
        model.train(training)
    shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if shape != (2, data.num_outputs):
        raise SparsityError(f"{name} gives {shape} for 2 images of {data.name}, which needs (2, {data.num_outputs})")
