"""Landings: by the formula where it is exact, which is faster, with the same result."""

import pytest
import torch
from torch import nn

from diffsparse import Budget
from diffsparse.budget import exact
from diffsparse.budget.steering import Steering
from tests.budget.examples import NETWORKS, gated


def landed(name: str, share: float, seed: int) -> tuple[Budget, nn.Module]:
    model, x = gated(name, seed)
    budget = Budget(model, x[:2], macs=share, steps=1)
    budget.step(torch.optim.SGD(model.parameters(), lr=0.1))
    return budget, model


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("share", "seed"), [(0.3, 0), (0.45, 1), (0.62, 2)])
def test_the_formula_fills_the_budget_as_exact_counts_do(
    name: str, share: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, small = landed(name, share, seed)
    monkeypatch.setattr(Steering, "_is_exact", lambda *_: False)
    slow, other = landed(name, share, seed)
    assert fast.cost == slow.cost
    assert str(small) == str(other)


def test_few_networks_are_compacted_where_the_formula_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    counted = exact.quietly_compacted
    monkeypatch.setattr(exact, "quietly_compacted", lambda *given: made.append(given) or counted(*given))
    landed("chain", 0.45, 1)
    fast = len(made)
    monkeypatch.setattr(Steering, "_is_exact", lambda *_: False)
    landed("chain", 0.45, 1)
    assert fast < len(made) - fast
