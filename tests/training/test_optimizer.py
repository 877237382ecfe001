import pytest
import torch
from torch import nn

from diffsparse import SparsityError, sparsify
from diffsparse.training import Optimisation
from diffsparse.training.optimizer import make_optimizer
from tests.training.examples import Net


def test_sgd_with_nesterovs_momentum_and_two_decays() -> None:
    model = sparsify(Net(), start=0.5)
    optimizer = make_optimizer(model, Optimisation(learning_rate=0.3, weight_decay=1e-3, gate_weight_decay=2e-3))
    assert type(optimizer) is torch.optim.SGD
    groups = {group["name"]: group for group in optimizer.param_groups}
    assert (groups["weights"]["weight_decay"], groups["gates"]["weight_decay"]) == (1e-3, 2e-3)
    assert all((g["lr"], g["momentum"], g["nesterov"]) == (0.3, 0.9, True) for g in groups.values())
    assert any(parameter is model.bn1.gate.alpha for parameter in groups["gates"]["params"])


def test_adam_takes_momentum_as_its_first_beta() -> None:
    optimizer = make_optimizer(Net(), Optimisation(optimizer="adam", learning_rate=1e-3, momentum=0.8))
    assert type(optimizer) is torch.optim.Adam
    assert [(g["name"], g["betas"], g["lr"]) for g in optimizer.param_groups] == [("weights", (0.8, 0.999), 1e-3)]


def test_no_momentum_means_no_nesterov() -> None:
    assert not make_optimizer(Net(), Optimisation(momentum=0.0)).param_groups[0]["nesterov"]


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(SparsityError, match="Flatten has no parameters to train"):
        make_optimizer(nn.Flatten(), Optimisation())
