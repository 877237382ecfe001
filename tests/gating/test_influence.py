"""Importance at the outputs of the network, against derivatives computed one by one."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.example import Example
from diffsparse.gating.influence import DRAWS, with_influence
from diffsparse.gating.sites import find_sites
from tests.gating.transformers_zoo import answer, built


def by_differences(model, example, site):
    """The size of the change of all outputs per change of each entry: its weights are made a little larger."""
    weight = model.get_submodule(site.layer)._parameters["weight"]
    before, step, sizes = answer(model, example), 1e-5, []
    for entry in range(site.entries):
        with torch.no_grad():
            part = weight.movedim(site.input_dim, 0)[entry * site.block : (entry + 1) * site.block]
            saved = part.clone()
            part.mul_(1 + step)
            sizes.append((answer(model, example) - before).norm() / step)
            part.copy_(saved)
    return torch.stack(sizes)


@pytest.mark.parametrize("name", ["nano-gpt", "llama-grouped"])
def test_it_is_the_derivative_of_the_outputs(name, monkeypatch):
    monkeypatch.setattr("diffsparse.gating.influence.DRAWS", 20 * DRAWS)
    model, example = built(name)
    given = Example.of(example)
    flags = [parameter.requires_grad for parameter in model.parameters()]
    sites = [site for site in find_sites(model, given).found if site.side == "inputs"]
    for site in with_influence(model, given, sites):
        expected = by_differences(model, example, site)
        assert torch.allclose(site.importance, expected.to(site.importance), rtol=0.25)
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert all(parameter.grad is None for parameter in model.parameters())


class Blind(nn.Module):
    """A second layer reads what the first one makes, but the output hardly depends on it."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.d((self.c(1e-3 * self.b(self.a(x).relu()) + x)).relu())


def test_entries_of_a_layer_that_matters_little_start_small():
    torch.manual_seed(0)
    model = ds.sparsify(Blind(), torch.randn(32, 4))
    assert model.b.input_gate().max() < model.d.input_gate().min()


class Silent(nn.Module):
    """Computes without gradients."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    @torch.no_grad()
    def forward(self, x):
        return self.b(self.a(x).relu())


class InPlace(Silent):
    """Writes into what the derivative needs."""

    def forward(self, x):
        hidden = self.a(x).sigmoid()
        out = self.b(hidden)
        hidden.mul_(2)
        return out


@pytest.mark.parametrize("kind", [Silent, InPlace])
def test_without_derivatives_the_output_of_the_layer_counts(kind):
    torch.manual_seed(0)
    model, given = kind().eval(), Example.of(torch.randn(16, 4))
    (site,) = find_sites(model, given).found
    (found,) = with_influence(model, given, [replace(site)])
    assert torch.equal(found.importance, site.importance)
    assert model.b.weight.requires_grad
