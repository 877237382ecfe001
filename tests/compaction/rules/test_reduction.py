"""Reductions over dimensions along which channels lie."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from diffsparse.testing import check_rule
from tests.compaction.shrinks import shrinks
from tests.compaction.tiny import chosen, node_of, recorded, tiny

REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean of channels": lambda y: y * y.mean(1, keepdim=True),
    "mean of everything": lambda y: y * y.mean(),
    "sum of heads": lambda y: y.unflatten(1, (2, -1)).sum(1),
    "largest of heads": lambda y: y.unflatten(1, (2, -1)).amax(1),
    "mean within heads": lambda y: (y.unflatten(1, (2, -1)) * y.unflatten(1, (2, -1)).mean(2, keepdim=True)).flatten(
        1, 2
    ),
    "mean of pixels of heads": lambda y: y * y.unflatten(1, (2, -1)).mean((3, 4)).flatten(1)[:, :, None, None],
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_rule_holds(name: str) -> None:
    check_rule(REDUCTIONS[name], widths=(4, 8), trials=10)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_nothing_dead_is_left(name: str) -> None:
    shrinks(
        tiny(REDUCTIONS[name], dead=[0, 1, 2, 3, 5], head=4 if "of heads" in name[:16] and "pixels" not in name else 8)
    )


def test_constants_stay_constant_in_a_mean_but_not_in_a_sum() -> None:
    for op, fixed in ((torch.mean, [0, 1]), (torch.sum, [1])):
        model = tiny(lambda y, op=op: op(y.unflatten(1, (2, -1)), 1), dead=[1, 5], fixed=[0, 4], head=4)
        assert chosen(node_of(recorded(model), op.__name__).output.fixed) == fixed
