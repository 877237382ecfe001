"""Modules that say what their ordinary form is."""

import pytest
from torch import nn

import diffsparse as ds
from diffsparse.compaction.materialise import materialise, parameter_sources
from diffsparse.gates import GatedModule
from diffsparse.wiring import WiredStage

GATED = {
    "signed": lambda: ds.SignedGate(4),
    "simplex": lambda: ds.SimplexGate(4),
    "matrix": lambda: ds.MatrixGate(2),
    "adjacency": lambda: ds.SparseAdjacency(3),
    "batch norm": lambda: ds.SparseBatchNorm2d(4),
    "batch norm without shift": lambda: ds.SparseBatchNorm1d(4, affine=False),
    "sum": lambda: ds.SparseSum([nn.Linear(2, 2), ds.SparseBatchNorm1d(2), ds.SparseSum([nn.Identity()])]),
    "stage": lambda: WiredStage(2, 3, groups=2),
    "model": lambda: nn.Sequential(WiredStage(2, 3), ds.SparseBatchNorm2d(3), nn.Conv2d(3, 2, 1)),
}


@pytest.mark.parametrize("make", GATED.values(), ids=GATED)
def test_every_trained_parameter_of_the_ordinary_form_has_a_source(make):
    model = make()
    assert isinstance(model, GatedModule | nn.Sequential)
    sources, old = parameter_sources(model), dict(model.named_parameters())
    for name, parameter in materialise(model).named_parameters():
        source = sources[name].name if name in sources else name
        assert not parameter.requires_grad or old[source].requires_grad


def test_an_ordinary_module_is_not_gated():
    assert not isinstance(nn.Linear(2, 2), GatedModule)
    assert parameter_sources(nn.Linear(2, 2)) == {}
