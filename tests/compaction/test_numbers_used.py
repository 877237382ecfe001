"""Numbers that code computes: those of the original are fine, up to rounding and as often as it used them."""

from collections import Counter

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.compaction.capture import capture
from diffsparse.compaction.numbers_used import NumbersUsed, numbers_of


class Scales(nn.Module):
    """Multiplies by what it is given, and adds a number that it reads off the data."""

    def __init__(self, *factors: float) -> None:
        super().__init__()
        self.factors, self.conv = factors, nn.Conv2d(2, 2, 1).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        for factor in self.factors:
            x = x * factor
        return x + x.mean().item()


X = torch.randn(1, 2, 3, 3, generator=torch.Generator().manual_seed(0)).double()


def numbers_in_a_run(model: nn.Module) -> NumbersUsed:
    with NumbersUsed() as used:
        model(X)
    return used


def test_a_recording_and_a_run_see_the_same_numbers() -> None:
    model = Scales(0.5, 3, 0.5)
    known = numbers_of(capture(model, (X,), {})[0])
    assert known[("mul", 0.5)] == 2
    assert numbers_in_a_run(model).counts == known


@pytest.mark.parametrize("factors", [(0.5,), (), (0.5 + 1e-12, 3, 0.5)], ids=str)
def test_fewer_numbers_and_rounding_are_fine(factors: tuple[float, ...]) -> None:
    known = Counter({("mul", 0.5): 2, ("mul", 3): 1, ("add", 1.0): 1})
    used = NumbersUsed()
    used.counts = Counter(("mul", factor) for factor in factors)
    used.require_among(known, 1e-9)


@pytest.mark.parametrize("used", [[("mul", 0.51)], [("add", 0.5)], [("mul", 0.5, 1)], [("mul", 0.5)] * 3], ids=str)
def test_other_numbers_are_not(used: list[tuple[object, ...]]) -> None:
    seen = NumbersUsed()
    seen.counts = Counter(used)
    with pytest.raises(ds.SparsityError, match=r"computes with the widths of its tensors: (mul|add) is given 0\.5"):
        seen.require_among(Counter({("mul", 0.5): 2}), 1e-9)
