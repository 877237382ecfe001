import math

import pytest
import torch
from torch import nn

from diffsparse import SparsityError, sparsify
from diffsparse.training import Optimisation
from diffsparse.training.optimizer import LearningRate, adopt_layout, gate_pace, make_optimizer
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


def test_adamw_decays_weights_apart_from_their_gradients() -> None:
    model = sparsify(Net(), start=0.5)
    optimizer = make_optimizer(model, Optimisation(optimizer="adamw", learning_rate=1e-3, weight_decay=0.1))
    assert type(optimizer) is torch.optim.AdamW
    decays = {group["name"]: group["weight_decay"] for group in optimizer.param_groups}
    assert decays == {"weights": 0.1, "gates": 0.0}
    assert gate_pace(Optimisation(optimizer="adamw"), epochs=1, steps=1).adaptive


def test_no_momentum_means_no_nesterov() -> None:
    assert not make_optimizer(Net(), Optimisation(momentum=0.0)).param_groups[0]["nesterov"]


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(SparsityError, match="Flatten has no parameters to train"):
        make_optimizer(nn.Flatten(), Optimisation())


EPOCHS, STEPS = 8, 5


def rates(**settings: object) -> list[float]:
    rate = LearningRate(settings=Optimisation(learning_rate=0.2, **settings), epochs=EPOCHS, steps=STEPS)
    return [rate.at(step) for step in range(EPOCHS * STEPS)]


def stepped(make: object, *, by_epoch: bool) -> list[float]:
    """What a scheduler of PyTorch gives, one value a step of the run."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.2)
    scheduler = make(optimizer)
    found = []
    for step in range(EPOCHS * STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if not by_epoch or (step + 1) % STEPS == 0:
            scheduler.step()
    return found


def test_cosine_falls_with_every_step() -> None:
    expected = stepped(
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * STEPS), by_epoch=False
    )
    assert rates() == pytest.approx(expected, rel=1e-6)
    assert len(set(rates())) == EPOCHS * STEPS


def test_steps_fall_at_their_shares_of_the_epochs() -> None:
    # a half and three quarters of eight epochs
    expected = stepped(lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [4, 6], 0.3), by_epoch=True)
    assert rates(schedule="steps", factor=0.3) == pytest.approx(expected, rel=1e-6)


def test_milestones_need_no_order_and_may_be_none() -> None:
    assert rates(schedule="steps", milestones=(0.75, 0.25)) == rates(schedule="steps", milestones=(0.25, 0.75))
    assert rates(schedule="steps", milestones=()) == [0.2] * (EPOCHS * STEPS)


def test_constant() -> None:
    assert rates(schedule="constant") == [0.2] * (EPOCHS * STEPS)


def test_warm_up_is_a_line_to_the_peak_and_the_cosine_has_the_rest() -> None:
    found = rates(warmup_epochs=1.6)
    warm = 8
    assert found[:warm] == pytest.approx([0.2 * (step + 1) / warm for step in range(warm)])
    left = EPOCHS * STEPS - warm
    assert found[warm:] == pytest.approx([0.1 * (1 + math.cos(math.pi * step / left)) for step in range(left)])


def test_warm_up_before_steps_does_not_move_the_milestones() -> None:
    plain, warm = rates(schedule="steps"), rates(schedule="steps", warmup_epochs=1)
    assert warm[5:] == plain[5:]
    assert warm[0] == pytest.approx(0.04)


def test_a_warm_up_longer_than_the_run_only_rises() -> None:
    found = rates(warmup_epochs=2 * EPOCHS)
    assert found == sorted(found)
    assert found[-1] == pytest.approx(0.1)


def test_depends_on_the_step_alone() -> None:
    rate = LearningRate(settings=Optimisation(warmup_epochs=1), epochs=EPOCHS, steps=STEPS)
    before = rate.at(17)
    assert [rate.at(step) for step in (39, 0, 3)] == [rate.at(39), rate.at(0), rate.at(3)]
    assert rate.at(17) == before


def test_the_pace_of_gates_is_the_sum_of_their_learning_rates() -> None:
    settings = Optimisation(learning_rate=0.1, gate_rate=2.0, momentum=0.8)
    pace = gate_pace(settings, epochs=4, steps=25)
    rate = LearningRate(settings=settings, epochs=4, steps=25)
    assert pace.total_rate == pytest.approx(2 * sum(rate.at(step) for step in range(100)))
    assert (pace.momentum, pace.adaptive) == (0.8, False)
    assert gate_pace(Optimisation(optimizer="adam"), epochs=1, steps=1).adaptive
    assert gate_pace(settings, epochs=0, steps=25).total_rate > 0


def test_state_takes_the_layout_of_its_parameter() -> None:
    weight = nn.Parameter(torch.rand(4, 3, 2, 2).to(memory_format=torch.channels_last))
    optimizer = torch.optim.SGD([weight], momentum=0.9)
    momentum = torch.rand(4, 3, 2, 2)
    optimizer.state[weight] = {"momentum_buffer": momentum, "step": torch.tensor(3.0), "note": 1}
    adopt_layout(optimizer)
    found = optimizer.state[weight]["momentum_buffer"]
    assert found.stride() == weight.stride() != momentum.stride()
    assert torch.equal(found, momentum)
    assert optimizer.state[weight]["note"] == 1
