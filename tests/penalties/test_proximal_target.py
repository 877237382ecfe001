"""Proximal steps that end at a target."""

import pytest
import torch
from torch import Tensor, nn

from diffsparse import L1, GroupL21, ProximalStep, SparsityError
from diffsparse.penalties.norms import Norm

START = [1.0, -0.1, 0.2, 0.3, -0.4, 0.5]


def stepped(
    gradients: list[list[float]], *, target: float | None, strength: float, norm: Norm | None = None
) -> tuple[Tensor, ProximalStep]:
    """The scales after steps with these gradients, from `START`, and what shrank them."""
    scales = nn.Parameter(torch.tensor(START, dtype=torch.float64))
    optimizer = torch.optim.SGD([scales], lr=0.1, momentum=0.9)
    shrinking = ProximalStep(optimizer, [scales], norm or L1(), strength, target)
    for gradient in gradients:
        scales.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
    return scales.detach(), shrinking


def test_without_a_target_zeros_come_back() -> None:
    after, shrinking = stepped([[0.0] * 6, [-9.0] * 6], target=None, strength=3.5)
    assert not shrinking.settled
    assert after.count_nonzero() == 6


def test_the_last_step_takes_the_smallest_lambda_that_will_do() -> None:
    # a whole step of 0.35 would leave three of six; two are enough, which 0.2 does
    after, shrinking = stepped([[0.0] * 6], target=1 / 3, strength=3.5)
    assert shrinking.settled
    assert after.tolist() == pytest.approx([0.8, 0.0, 0.0, 0.1, -0.2, 0.3], abs=1e-6)


def test_settled_zeros_stay_and_the_rest_is_free() -> None:
    after, _ = stepped([[0.0] * 6, [-9.0] * 6, [0.0] * 6], target=1 / 3, strength=3.5)
    # momentum carries 0.9 of the second step into the third, without any shrinking
    moved = 0.9 + 0.81
    assert after.tolist() == pytest.approx([0.8 + moved, 0.0, 0.0, 0.1 + moved, -0.2 + moved, 0.3 + moved], abs=1e-6)


def test_below_the_target_steps_are_ordinary_ones() -> None:
    gradients = [[0.1 * i for i in range(6)]] * 3
    free, _ = stepped(gradients, target=None, strength=0.4)
    aimed, shrinking = stepped(gradients, target=0.5, strength=0.4)
    assert not shrinking.settled
    assert torch.equal(free, aimed)


def test_groups_go_as_a_whole() -> None:
    after, _ = stepped([[0.0] * 6], target=1 / 3, strength=9.0, norm=GroupL21(size=3))
    assert after[:3].count_nonzero() == 3
    assert after[3:].count_nonzero() == 0


def test_settling_by_hand_after_a_restart() -> None:
    first, _ = stepped([[0.0] * 6], target=1 / 3, strength=3.5)
    scales = nn.Parameter(first.clone())
    optimizer = torch.optim.SGD([scales], lr=0.1)
    shrinking = ProximalStep(optimizer, [scales], L1(), 3.5, 1 / 3)
    shrinking.settle()
    scales.grad = torch.full((6,), -1.0, dtype=torch.float64)
    optimizer.step()
    assert scales.tolist() == pytest.approx([0.9, 0.0, 0.0, 0.2, -0.1, 0.4], abs=1e-6)


@pytest.mark.parametrize("target", [-0.1, 1.1, float("nan")])
def test_a_target_is_a_share(target: float) -> None:
    with pytest.raises(SparsityError, match="target"):
        stepped([], target=target, strength=1.0)
