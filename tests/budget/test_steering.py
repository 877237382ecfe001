"""Landings: by the formula where it is exact, which is faster, with the same result."""

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse import Budget
from diffsparse.budget import exact, landing
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
    monkeypatch.setattr(landing, "is_exact", lambda *_: False)
    slow, other = landed(name, share, seed)
    assert fast.cost == slow.cost
    assert str(small) == str(other)


def test_few_networks_are_compacted_where_the_formula_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    counted = exact.quietly_compacted
    monkeypatch.setattr(exact, "quietly_compacted", lambda *given: made.append(given) or counted(*given))
    landed("chain", 0.45, 1)
    fast = len(made)
    monkeypatch.setattr(landing, "is_exact", lambda *_: False)
    landed("chain", 0.45, 1)
    assert fast < len(made) - fast


def test_a_landing_among_entries_that_are_equally_weak_is_close() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 8, 2, 2), nn.BatchNorm2d(8)]
    layers += [
        nn.LeakyReLU(0.1),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(8, 4, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ]
    model = ds.sparsify(nn.Sequential(*layers, nn.Flatten()), start=1.0)
    x = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    budget = Budget(model, x[:2], macs=0.5, steps=12)
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.05, momentum=0.9)
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(x), torch.arange(16) % 4) + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        budget.step(optimizer)
    # no choice of channels comes closer
    assert budget.cost["macs"] == pytest.approx(0.49475, abs=1e-4)
