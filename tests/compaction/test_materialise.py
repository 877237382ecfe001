"""Gates evaluated: sparse layers become ordinary ones that compute the same."""

import copy

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.materialise import bake
from diffsparse.nn import SparseBatchNorm
from diffsparse.nn.weighted_sum import WeightedSum
from tests.compaction.nets import same
from tests.compaction.tiny import OTHER, X, tiny

KINDS = {
    ds.SparseBatchNorm1d: (nn.BatchNorm1d, (4, 6, 5)),
    ds.SparseBatchNorm2d: (nn.BatchNorm2d, (4, 6, 3, 3)),
    ds.SparseBatchNorm3d: (nn.BatchNorm3d, (4, 6, 2, 2, 2)),
    SparseBatchNorm: (nn.SyncBatchNorm, (4, 6, 3)),
}


def trained(norm: SparseBatchNorm, shape: tuple[int, ...]) -> SparseBatchNorm:
    """A sparse batch norm that has seen a batch and whose numbers are no defaults."""
    norm.double().train()(3 * torch.randn(shape).double() + 1)
    norm.gate.alpha.data = torch.tensor([0.9, -0.4, 0.0, 0.7, -1.2, 0.01]).double()
    if norm.bias is not None:
        norm.bias.data = torch.randn(6).double()
    return norm.eval()


def apart(a: nn.Module, b: nn.Module, x: Tensor) -> float:
    return float((a(x) - b(x)).detach().abs().max())


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_ordinary_class_computes_the_same(kind: type[SparseBatchNorm], affine: bool) -> None:
    ordinary, shape = KINDS[kind]
    sparse = trained(kind(6, eps=1e-3, momentum=0.2, affine=affine), shape)
    baked = bake(sparse)
    assert type(baked) is ordinary
    assert (baked.eps, baked.momentum) == (1e-3, 0.2)
    assert apart(sparse, baked, torch.randn(shape).double()) < 1e-12
    assert torch.equal(baked.running_var, sparse.running_var)
    assert int(baked.num_batches_tracked) == 1


def test_without_running_statistics() -> None:
    sparse = ds.SparseBatchNorm2d(6, track_running_stats=False).double().eval()
    baked = bake(sparse)
    assert baked.running_mean is None
    assert apart(sparse, baked, torch.randn(4, 6, 3, 3).double()) < 1e-12


def test_an_absent_shift_is_zero_and_not_trained() -> None:
    baked = bake(ds.SparseBatchNorm2d(6, affine=False))
    assert baked.bias.eq(0).all()
    assert not baked.bias.requires_grad
    assert baked.weight.requires_grad


def test_what_was_frozen_stays_frozen() -> None:
    sparse = ds.SparseBatchNorm2d(6)
    sparse.requires_grad_(False)
    baked = bake(sparse)
    assert not baked.weight.requires_grad
    assert not baked.bias.requires_grad


def test_statistics_that_were_synchronised_are_taken_over() -> None:
    model = nn.Sequential(trained(ds.SparseBatchNorm2d(6), (4, 6, 3, 3)))
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model).eval()
    assert type(model[0].statistics).__name__ == "SyncStatistics"
    baked = bake(model)
    assert type(baked[0]) is nn.BatchNorm2d
    assert torch.equal(baked[0].running_mean, model[0].running_mean)
    assert apart(model, baked, torch.randn(4, 6, 3, 3).double()) < 1e-12


def test_a_copy_is_made_and_the_mode_is_kept() -> None:
    model = nn.Sequential(ds.SparseBatchNorm2d(6), nn.ReLU())
    model[0].eval()
    baked = bake(model)
    assert type(model[0]) is ds.SparseBatchNorm2d
    assert baked.training
    assert not baked[0].training
    baked[0].running_mean.add_(1)
    assert model[0].running_mean.eq(0).all()


def test_a_layer_held_twice_is_held_twice_afterwards() -> None:
    shared = ds.SparseBatchNorm2d(6)
    baked = bake(nn.Sequential(shared, nn.ReLU(), nn.Sequential(shared)))
    assert baked[0] is baked[2][0]


def test_a_sum_becomes_a_weighted_sum() -> None:
    mix = ds.SparseSum([nn.Linear(3, 2), nn.Linear(3, 2)], ds.SignedGate.from_values([0.5, -2.0])).double().eval()
    baked = bake(nn.Sequential(mix))
    assert type(baked[0]) is WeightedSum
    assert torch.allclose(baked[0].weights.detach(), torch.tensor([0.5, -2.0]).double(), atol=1e-6)
    assert apart(mix, baked, torch.randn(5, 3).double()) < 1e-12


def test_sums_within_sums() -> None:
    inner = ds.SparseSum([nn.Linear(3, 3), ds.SparseSum([nn.Linear(3, 3), nn.Identity()])])
    mix = ds.SparseSum([inner, nn.Identity()]).double().eval()
    baked = bake(mix)
    assert not [m for m in baked.modules() if isinstance(m, ds.SparseSum)]
    assert apart(mix, baked, torch.randn(5, 3).double()) < 1e-12


def test_half_precision() -> None:
    sparse = ds.SparseBatchNorm2d(6).bfloat16().eval()
    assert bake(sparse).weight.dtype == torch.bfloat16


def test_what_stands_for_a_module_runs_in_eval_mode_whatever_mode_it_was_made_in() -> None:
    class Computed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x)

        def ordinary(self) -> nn.Module:
            return copy.deepcopy(self.norm).train()

    model = tiny(Computed(), dead=[0, 1]).eval()
    small = ds.compact(model, X).model
    assert not any(module.training for module in small.modules())
    assert same(model, small, OTHER)
