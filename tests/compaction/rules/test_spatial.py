"""Pooling, resizing, padding, means: constants at the border and zeros everywhere."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.rules import OPAQUE
from tests.compaction.nets import same
from tests.compaction.tiny import OTHER, X, chosen, node_of, recorded, tiny

Between = Callable[[Tensor], Tensor]
ZERO, CONSTANT = 0, 3

KEEP_CONSTANTS: dict[str, Between] = {
    "max pool, padded": lambda y: F.max_pool2d(y, 3, 2, 1),
    "average pool": lambda y: F.avg_pool2d(y, 2),
    "average pool, padding not counted": lambda y: F.avg_pool2d(y, 3, 2, 1, count_include_pad=False),
    "average pool, ceil": lambda y: F.avg_pool2d(y, 3, 2, ceil_mode=True),
    "adaptive average": lambda y: F.adaptive_avg_pool2d(y, 3),
    "adaptive maximum": lambda y: F.adaptive_max_pool2d(y, 3),
    "nearest": lambda y: F.interpolate(y, scale_factor=2),
    "bilinear": lambda y: F.interpolate(y, size=5, mode="bilinear"),
    "replicate": lambda y: F.pad(y, (1, 1, 1, 1), "replicate"),
    "reflect": lambda y: F.pad(y, (1, 2, 0, 1), mode="reflect"),
    "cropped": lambda y: F.pad(y, (0, 0)),
    "mean": lambda y: y.mean((2, 3), keepdim=True),
    "mean, row by row": lambda y: y.mean(-1, True),
    "maximum": lambda y: y.amax((2, 3), keepdim=True),
    "minimum": lambda y: torch.amin(y, dim=[2], keepdim=True),
}
KEEP_ZEROS_ONLY: dict[str, Between] = {
    "average pool, padded": lambda y: F.avg_pool2d(y, 3, 2, 1),
    "average pool module, padded": nn.AvgPool2d(3, padding=1),
    "pad with zero": lambda y: F.pad(y, (1, 1, 1, 1)),
    "zero pad module": nn.ZeroPad2d(1),
    "sum over pixels": lambda y: y.sum((2, 3), keepdim=True),
}


@pytest.mark.parametrize("name", [*KEEP_CONSTANTS, *KEEP_ZEROS_ONLY])
def test_what_stays_fixed(name: str) -> None:
    between = {**KEEP_CONSTANTS, **KEEP_ZEROS_ONLY}[name]
    model = tiny(between, dead=[ZERO], fixed=[CONSTANT])
    fixed = chosen(recorded(model).nodes[-2].output.fixed)
    assert fixed == ([ZERO, CONSTANT] if name in KEEP_CONSTANTS else [ZERO])
    small = ds.compact(model, X)
    # what a constant is at the border is known, but not how many pixels a sum is over
    assert small.model.head.in_channels == 8 - (1 if name == "sum over pixels" else 2)
    assert (small.plan.layers["head"].adds is not None) == (name in KEEP_ZEROS_ONLY and name != "sum over pixels")
    assert not small.kept
    assert same(model, small.model, OTHER)


def test_a_border_of_the_channels_own_number_keeps_it_fixed() -> None:
    model = tiny(lambda y: F.pad(y, (1, 1), value=0.25), dead=[ZERO], fixed=[CONSTANT])
    model.norm.bias.data[CONSTANT] = 0.25
    assert chosen(recorded(model).nodes[-2].output.fixed) == [CONSTANT]
    assert same(model, ds.compact(model, X).model, OTHER)


class PaddedByBuffers(nn.Module):
    """How much to pad is stored, and in part computed from the size."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.register_buffer("amount", torch.tensor(1))
        self.mode = mode

    def forward(self, y: Tensor) -> Tensor:
        return F.pad(y, (self.amount, self.amount + y.shape[3] % 2, 1, self.amount), mode=self.mode)


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_padding_by_tensors(mode: str) -> None:
    model = tiny(PaddedByBuffers(mode), dead=[ZERO], fixed=[CONSTANT])
    fixed = chosen(node_of(recorded(model), "pad").output.fixed)
    assert fixed == ([ZERO] if mode == "constant" else [ZERO, CONSTANT])
    small = ds.compact(model, X)
    assert small.model.head.in_channels == 8 - len(fixed)
    assert not small.fallbacks
    assert same(model, small.model, OTHER)


def test_padding_across_channels_with_another_number_is_opaque() -> None:
    graph = recorded(tiny(lambda y: F.pad(y, (0, 0, 0, 0, 1, 1), value=0.5), dead=[ZERO], head=10))
    assert graph.nodes[-2].rule is OPAQUE


@pytest.mark.parametrize("dim", [1, (1, 2), -3, None])
def test_a_mean_across_channels_is_opaque(dim: object) -> None:
    model = tiny(lambda y: y + (y.mean() if dim is None else y.mean(dim, keepdim=True)), dead=[ZERO])
    small = ds.compact(model, X)
    assert small.kept[0].reason.startswith("mean: ")
    assert same(model, small.model, OTHER)


@pytest.mark.parametrize(
    "reduce",
    [
        lambda y: y.mean((2, 3)),
        lambda y: y.mean([-1, -2]),
        lambda y: torch.mean(y, dim=(2, 3)),
        lambda y: y.sum((2, 3)),
    ],
)
def test_a_reduction_without_keepdim_feeds_a_linear_layer(reduce: Between) -> None:
    model = tiny(reduce, dead=[0, 5], head=nn.Linear(8, 3))
    small = ds.compact(model, X)
    assert small.model.head.in_features == 6
    assert same(model, small.model, OTHER)


def test_channels_move_when_dimensions_in_front_of_them_go() -> None:
    model = tiny(lambda y: y.permute(0, 2, 3, 1).mean((1, 2)), dead=[0, 5], head=nn.Linear(8, 3))
    out = recorded(model).nodes[-2].output
    assert out.axis == 1
    assert same(model, ds.compact(model, X).model, OTHER)


@pytest.mark.parametrize(("dims", "pool"), [(1, nn.MaxPool1d(2)), (3, nn.AvgPool3d(2))])
def test_one_and_three_dimensions(dims: int, pool: nn.Module) -> None:
    conv, norm = (nn.Conv1d, nn.BatchNorm1d) if dims == 1 else (nn.Conv3d, nn.BatchNorm3d)
    model = nn.Sequential(conv(3, 6, 1), norm(6), pool, conv(6, 2, 1)).double().eval()
    for parameter in (model[1].weight, model[1].bias):
        parameter.data[[0, 2]] = 0
    small = ds.compact(model, torch.randn(2, 3, *[4] * dims).double())
    assert small.model[3].in_channels == 4
    assert same(model, small.model, torch.randn(2, 3, *[6] * dims).double())
