"""Batch norms folded into the layer in front."""

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds
from tests.compaction.nets import randomise, same
from tests.compaction.tiny import OTHER, X, tiny


def norms(model: nn.Module) -> list[str]:
    return [name for name, m in model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def test_a_folded_norm_is_an_identity() -> None:
    model = tiny(dead=[0, 1])
    small = ds.compact(model, X, fold=True)
    assert type(small.model.norm) is nn.Identity
    assert small.plan.layers["norm"].tag == "folded"
    assert same(model, small.model, OTHER)


def test_the_weight_takes_scale_and_shift() -> None:
    model = tiny()
    small = ds.compact(model, X, fold=True).model
    scale = model.norm.weight / (model.norm.running_var + model.norm.eps).sqrt()
    assert torch.allclose(small.conv.weight, model.conv.weight * scale.view(-1, 1, 1, 1))
    assert torch.allclose(small.conv.bias, (model.conv.bias - model.norm.running_mean) * scale + model.norm.bias)


def test_a_layer_without_bias_gets_one() -> None:
    model = randomise(nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)))
    small = ds.compact(model, torch.randn(3, 4).double(), fold=True)
    assert small.plan.layers["0"].adds_bias
    assert same(model, small.model, torch.randn(5, 4).double())


def test_a_norm_without_scale_folds() -> None:
    model = tiny(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8, affine=False)), dead=[2])
    small = ds.compact(model, X, fold=True)
    assert norms(small.model) == []
    assert same(model, small.model, OTHER)


def test_constants_are_put_back_behind_a_folded_norm() -> None:
    model = tiny(lambda y: y.flip(1), dead=[0], fixed=[3])
    small = ds.compact(model, X, fold=True)
    assert small.plan.layers["norm"].expand is not None
    assert type(small.model.norm) is nn.Identity
    assert same(model, small.model, OTHER)


@pytest.mark.parametrize("groups", [2, 8])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dead", [[], [0, 1, 2, 4]])
def test_grouped_and_ragged_layers_fold(groups: int, bias: bool, dead: list[int]) -> None:
    model = tiny(nn.Sequential(nn.Conv2d(8, 8, 3, groups=groups, bias=bias), nn.BatchNorm2d(8)), dead=dead)
    small = ds.compact(model, X, fold=True)
    assert norms(small.model) == []
    assert small.fallbacks == ()
    assert same(model, small.model, OTHER)


def test_a_norm_whose_input_is_read_elsewhere_stays() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return y + self.norm(y)

    model = tiny(Shared())
    small = ds.compact(model, X, fold=True)
    assert norms(small.model) == ["between.norm"]
    assert same(model, small.model, OTHER)


@pytest.mark.parametrize(
    "between",
    [
        lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm2d(8)),
        lambda: nn.Sequential(nn.ConvTranspose2d(8, 8, 2), nn.BatchNorm2d(8)),
    ],
)
def test_other_norms_stay(between: object) -> None:
    model = tiny(between())  # type: ignore[operator]
    small = ds.compact(model, X, fold=True)
    assert norms(small.model) == ["between.1"]
    assert same(model, small.model, OTHER)


def test_a_norm_with_statistics_of_the_batch_stays() -> None:
    model = tiny()
    model.norm = nn.BatchNorm2d(8, track_running_stats=False).double()
    small = ds.compact(model, X, fold=True)
    assert norms(small.model) == ["norm"]
    assert same(model, small.model, OTHER)


def test_gates_fold_too() -> None:
    model = tiny(nn.ReLU(), dead=[0, 5])
    small = ds.compact(ds.sparsify(tiny(nn.ReLU(), dead=[0, 5])), X, fold=True).model
    assert norms(small) == []
    assert same(model, small, OTHER)


def test_a_batch_norm_in_a_component_that_leaves_is_not_folded() -> None:
    torch.manual_seed(0)
    dead = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    live = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    total = ds.SparseSum([live, dead])
    with torch.no_grad():
        total.gate = ds.SignedGate.from_values(torch.tensor([0.8, 0.0]))
    model = nn.Sequential(total, nn.Conv2d(3, 2, 1)).eval()
    x = torch.randn(2, 3, 5, 5)
    small = ds.compact(model, x, fold=True)
    torch.testing.assert_close(small.model(x), model(x), atol=1e-5, rtol=1e-5)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in small.model.modules())
