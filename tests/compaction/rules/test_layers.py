"""Convolutions, linear layers, batch norms: which weights stay."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.rules.merge import fold_into_bias
from diffsparse.testing import zero_channels
from tests.compaction.nets import randomise, same
from tests.compaction.shrinks import shrinks
from tests.compaction.tiny import OTHER, Tiny, X, analysed, chosen, complement, recorded, tiny


def grouped(
    conv: nn.Module, dead: list[int] | None = None, width: int = 8, head: int | None = None, fixed: tuple[int, ...] = ()
) -> tuple[Tiny, Tiny]:
    """A net with `conv` in the middle, and what compaction makes of it."""
    model = tiny(conv, dead=dead or [], width=width, head=head, fixed=fixed)
    small = ds.compact(model, X)
    assert same(model, small.model, OTHER)
    return model, small.model


def test_an_output_without_weights_is_its_bias() -> None:
    model = tiny(nn.Conv2d(8, 8, 3))
    model.between.weight.data[[1, 5]] = 0
    out = analysed(model).layers[2][1].output
    assert chosen(out.fixed) == [1, 5]
    assert out.numbers[1] == pytest.approx(model.between.bias[1].item())
    assert same(model, ds.compact(model, X).model, OTHER)


def test_an_input_without_weights_is_not_read() -> None:
    model = tiny()
    model.head.weight.data[:, [2, 3]] = 0
    small = ds.compact(model, X)
    assert small.model.conv.out_channels == 6
    assert same(model, small.model, OTHER)


@pytest.mark.parametrize(("padding", "folds"), [(0, True), ("valid", True), (1, False), ((1, 0), False)])
def test_a_constant_folds_unless_padding_makes_it_vary_at_the_border(padding: int | str, folds: bool) -> None:
    model = tiny(nn.Conv2d(8, 8, (3, 1), padding=padding), fixed=[3])
    layer = analysed(model).layers[2][1]
    assert layer.folds is folds
    assert chosen(layer.columns) == (complement(3) if folds else complement())
    assert same(model, ds.compact(model, X).model, OTHER)


@pytest.mark.parametrize("mode", ["circular", "reflect", "replicate"])
def test_padding_modes(mode: str) -> None:
    grouped(nn.Conv2d(8, 8, 3, padding=1, padding_mode=mode), [0, 1], fixed=(3,))


def test_fold_into_bias_is_the_weight_times_the_constant() -> None:
    model = tiny(nn.Conv2d(8, 8, 3), fixed=[3])
    layer = analysed(model).layers[2][1]
    expected = model.between.weight[:, 3].sum((1, 2)) * model.norm.bias[3]
    added = fold_into_bias(layer, model.between.weight)
    assert torch.allclose(torch.from_numpy(added), expected.detach())


def test_depthwise_follows_its_input() -> None:
    _, small = grouped(nn.Conv2d(8, 8, 3, groups=8), [0, 4, 5])
    assert (small.conv.out_channels, small.between.groups, small.head.in_channels) == (5, 5, 5)


def test_depthwise_with_a_multiplier_loses_whole_groups() -> None:
    _, small = grouped(nn.Conv2d(4, 8, 3, groups=4), [1], width=4, head=8)
    assert (small.between.groups, small.between.weight.shape[0], small.head.in_channels) == (3, 6, 6)


@pytest.mark.parametrize("groups", [2, 4])
def test_dead_groups_leave_and_the_others_shrink_evenly(groups: int) -> None:
    size = 8 // groups
    dead = [*range(size), *(size * g + 1 for g in range(1, groups))]
    _, small = grouped(nn.Conv2d(8, 8, 3, groups=groups), dead)
    assert (small.between.groups, small.between.in_channels) == (groups - 1, (groups - 1) * (size - 1))


def test_transposed_grouped() -> None:
    _, small = grouped(nn.ConvTranspose2d(8, 12, 3, stride=2, groups=2), [0, 1, 4, 5], head=12)
    assert small.between.weight.shape == (4, 6, 3, 3)
    _, small = grouped(nn.ConvTranspose2d(8, 12, 3, stride=2, groups=2, output_padding=1), [0, 1, 2, 3], head=12)
    assert (small.between.groups, small.between.in_channels) == (1, 4)


def test_transposed_never_folds_a_constant() -> None:
    model = tiny(nn.ConvTranspose2d(8, 8, 3), fixed=[3])
    assert not analysed(model).layers[2][1].folds
    assert same(model, ds.compact(model, X).model, OTHER)


class Twice(nn.Module):
    """One convolution, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.relu(self.conv(x)))


class Direct(nn.Module):
    """Weights used by `F.conv2d`, not by the module that holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.conv.weight, self.conv.bias)


class Tied(nn.Module):
    """Two layers with the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x)))


class Regularised(nn.Module):
    """A weight that something else reads, too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + self.conv.weight.square().sum()


@pytest.mark.parametrize("kind", [Twice, Direct, Tied, Regularised])
def test_weights_with_more_than_one_use_stay_exact(kind: Callable[[], nn.Module]) -> None:
    grouped(kind(), [0, 1], fixed=(5,))


def test_directly_used_weights_shrink_and_their_module_knows() -> None:
    model, small = grouped(Direct(), [0, 1])
    assert (small.between.conv.in_channels, small.between.conv.weight.shape[1]) == (6, 6)
    model.head.weight.data[:, 4] = 0
    assert ds.compact(model, X).model.between.conv.out_channels == 7


def test_tied_weights_stay_tied() -> None:
    model, small = grouped(Tied())
    assert small.between.a.weight is small.between.b.weight
    model.head.weight.data[:, 4] = 0
    again = ds.compact(model, X).model
    assert again.between.a.weight is again.between.b.weight


def test_a_grouped_layer_used_twice_is_kept_with_a_reason() -> None:
    twice = Twice()
    twice.conv = nn.Conv2d(8, 8, 3, padding=1, groups=2)
    model = tiny(twice, dead=[0, 1, 2, 3])
    small = ds.compact(model, X)
    assert any("used more than once" in entry.reason for entry in small.kept)
    assert small.model.between.conv.weight.shape == (8, 4, 3, 3)
    assert same(model, small.model, OTHER)


def test_a_scale_of_zero_fixes_a_channel_of_a_batch_norm() -> None:
    model = tiny(dead=[1], fixed=[6])
    out = analysed(model).layers[1][1].output
    assert chosen(out.fixed) == [1, 6]
    assert chosen(out.zero) == [1]
    assert out.numbers[6] == pytest.approx(model.norm.bias[6].item())


def test_statistics_of_the_batch_make_a_constant_unknown() -> None:
    model = tiny(fixed=[3])
    model.between = nn.BatchNorm2d(8, track_running_stats=False).double()
    assert not recorded(model).nodes[-2].output.fixed.any()
    assert same(model, ds.compact(model, X).model, OTHER)


def test_linear_layers_on_tokens() -> None:
    model = randomise(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)))
    for layer in (model[0], model[2]):
        zero_channels(layer, [1, 2])
    small = ds.compact(model, torch.randn(2, 5, 4).double()).model
    assert [layer.out_features for layer in small[::2]] == [6, 4, 2]
    assert same(model, small, torch.randn(3, 7, 4).double())


@pytest.mark.parametrize("mode", ["circular", "reflect", "replicate"])
@pytest.mark.parametrize("groups", [1, 8])
def test_a_convolution_that_pads_for_itself_is_a_layer(mode: str, groups: int) -> None:
    model = tiny(nn.Conv2d(8, 8, 3, padding=1, padding_mode=mode, groups=groups), dead=[0, 1, 5], fixed=[2])
    small = shrinks(model)
    assert small.model.between.in_channels == 4
    assert small.model.between(torch.randn(1, 4, 6, 6).double()).shape[2:] == (6, 6)
    assert not small.kept


def test_groups_of_different_sizes_get_the_bias_that_constants_leave() -> None:
    model = tiny(nn.Conv2d(8, 8, 1, groups=2, bias=False), dead=[0, 1], fixed=[2])
    model.head.weight.data[:, :3] = 0
    small = shrinks(model)
    assert small.plan.layers["between"].tag == "ragged"
    assert small.model.between.bias.abs().max() > 0
