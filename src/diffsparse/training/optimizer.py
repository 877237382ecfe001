"""The optimiser of a run."""

from torch import nn
from torch.optim import SGD, Adam, Optimizer

from diffsparse.errors import SparsityError
from diffsparse.gating import parameter_groups
from diffsparse.training.config import Optimisation


def make_optimizer(model: nn.Module, settings: Optimisation) -> Optimizer:
    """SGD or Adam over weights and gates, which have a weight decay each."""
    groups = parameter_groups(model, settings.weight_decay, settings.gate_weight_decay)
    if not groups:
        raise SparsityError(f"{type(model).__name__} has no parameters to train")
    if settings.optimizer == "adam":
        return Adam(groups, lr=settings.learning_rate, betas=(settings.momentum, 0.999))
    nesterov = settings.nesterov and settings.momentum > 0
    return SGD(groups, lr=settings.learning_rate, momentum=settings.momentum, nesterov=nesterov)
