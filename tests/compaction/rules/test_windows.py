"""Unfold and fold."""

import pytest
import torch.nn.functional as F
from torch import Tensor

from diffsparse.testing import check_rule
from tests.compaction.shrinks import shrinks
from tests.compaction.tiny import chosen, node_of, recorded, tiny


def windows(y: Tensor, padding: int = 0) -> Tensor:
    columns = F.unfold(y, 3, padding=padding)
    return columns.unflatten(2, (y.shape[2] - 2 + 2 * padding, -1))


def folded(y: Tensor) -> Tensor:
    return F.fold(F.unfold(y, 3, padding=1).relu(), y.shape[2:], 3, padding=1)


@pytest.mark.parametrize("operator", [windows, lambda y: windows(y, 1), folded, lambda y: y.unfold(2, 2, 1).sum(-1)])
def test_rule_holds(operator: object) -> None:
    check_rule(operator, trials=10)  # type: ignore[arg-type]


def test_windows_leave_with_their_channel() -> None:
    small = shrinks(tiny(windows, dead=[0, 1, 2, 3, 5], fixed=[6], head=72))
    assert small.model.head.in_channels == 18
    assert not small.kept
    assert not shrinks(tiny(folded, dead=[0, 1, 2, 3, 5])).kept


def test_a_border_of_zeros_makes_a_constant_vary() -> None:
    model = tiny(lambda y: windows(y, 1), dead=[0], fixed=[3], head=72)
    assert chosen(node_of(recorded(model), "unfold").output.fixed) == list(range(9))
