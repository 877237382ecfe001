"""Reshapes, transposes, slices and shuffles: where channels go."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.rules.movement import names_sizes
from diffsparse.testing import zero_channels
from tests.compaction.nets import randomise, same
from tests.compaction.tiny import OTHER, X, analysed, chosen, complement, node_of, recorded, tiny

Between = Callable[[Tensor], Tensor]


def shuffle(y: Tensor) -> Tensor:
    n, c, h, w = y.shape
    return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def halves(y: Tensor) -> Tensor:
    a, b = y.chunk(2, 1)
    return a * b


def thirds(y: Tensor) -> Tensor:
    a, b, c = y.split([2, 4, 2], dim=1)
    return torch.cat([c, b, a], 1)


FOLLOWED: dict[str, tuple[Between, list[int]]] = {
    "flip": (lambda y: y.flip(1), [7, 6]),
    "roll": (lambda y: y.roll(1, 1), [1, 2]),
    "channel shuffle": (shuffle, [0, 2]),
    "split": (thirds, [6, 7]),
    "channel shuffle of torch": (nn.ChannelShuffle(2), [0, 2]),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_the_dead_are_found_where_they_went(name: str) -> None:
    between, where = FOLLOWED[name]
    model = tiny(between, dead=[0, 1])
    assert chosen(analysed(model).layers[-1][1].input.fixed) == sorted(where)
    small = ds.compact(model, X)
    assert small.model.conv.out_channels == 6
    assert small.model.head.in_channels == 6
    assert same(model, small.model, OTHER)


def test_what_nobody_reads_of_a_slice_goes() -> None:
    model = tiny(lambda y: y[:, 2:6], head=4)
    small = ds.compact(model, X)
    assert small.model.conv.out_channels == 4
    assert any("getitem" in entry.reason for entry in small.kept)
    assert same(model, small.model, OTHER)


def test_product_of_two_halves() -> None:
    model = tiny(halves, dead=[1, 6], head=4)
    small = ds.compact(model, X)
    # channel 2 is multiplied with the dead channel 6, channel 5 with the dead channel 1
    assert small.model.conv.out_channels == 4
    assert small.model.head.in_channels == 2
    assert same(model, small.model, OTHER)


@pytest.mark.parametrize(
    ("between", "width"),
    [
        (lambda y: y.permute(0, 2, 3, 1), 8),
        (lambda y: y.flatten(2).transpose(1, 2), 8),
        (lambda y: y.mean((2, 3)), 8),
        (lambda y: torch.flatten(y.mean((2, 3), keepdim=True), 1), 8),
        (lambda y: y.amax((2, 3), keepdim=True).squeeze(-1).squeeze(-1), 8),
    ],
)
def test_any_width_passes(between: Between, width: int) -> None:
    model = tiny(between, dead=[0, 5], head=nn.Linear(width, 3))
    small = ds.compact(model, X)
    assert small.model.head.in_features == 6
    assert not small.kept
    assert same(model, small.model, OTHER)


@pytest.mark.parametrize("flat", [lambda y: y.flatten(1), lambda y: y.reshape(y.shape[0], -1)])
def test_flattened_pixels_leave_with_their_channel(flat: Between) -> None:
    model = tiny(flat, dead=[0, 5], fixed=[2], head=nn.Linear(8 * 64, 3))
    small = ds.compact(model, X)
    assert small.model.head.in_features == 5 * 64
    assert same(model, small.model, torch.randn_like(X))


def test_pixel_shuffle_needs_a_whole_block_to_die() -> None:
    model = tiny(nn.PixelShuffle(2), dead=[0, 1, 2, 3, 4], head=2)
    analysis = analysed(model)
    out = node_of(analysis.graph, "pixel_shuffle").output
    assert chosen(out.fixed) == [0]
    assert chosen(analysis.layers[0][1].rows) == [5, 6, 7]
    small = ds.compact(model, X)
    assert small.model.head.in_channels == 1
    assert same(model, small.model, OTHER)


def test_pixel_shuffle_of_different_constants_is_not_constant() -> None:
    model = tiny(nn.PixelShuffle(2), fixed=[0, 1, 2, 3], head=2)
    assert not node_of(recorded(model), "pixel_shuffle").output.fixed.any()
    model.norm.bias.data[:4] = 0.5
    assert chosen(node_of(recorded(model), "pixel_shuffle").output.fixed) == [0]
    assert same(model, ds.compact(model, X).model, OTHER)


def test_pixel_unshuffle_gives_each_channel_a_block() -> None:
    model = tiny(nn.PixelUnshuffle(2), dead=[0, 7], head=32)
    small = ds.compact(model, X)
    assert small.model.head.in_channels == 24
    assert same(model, small.model, torch.randn(1, 3, 6, 10).double())


@pytest.mark.parametrize(
    "between",
    [
        lambda y: torch.stack(list(y)),
        lambda y: torch.cat([one.unsqueeze(0) for one in y], 0),
        lambda y: torch.stack([a for (a,) in zip(y, strict=True)]),
    ],
)
def test_iteration_over_the_batch(between: Between) -> None:
    model = tiny(between, dead=[0])
    assert same(model, ds.compact(model, X).model, OTHER)


def test_a_single_channel_left_is_not_squeezed_away() -> None:
    model = tiny(lambda y: y.mean((2, 3), keepdim=True).squeeze(), dead=complement(4), head=nn.Linear(8, 3))
    small = ds.compact(model, X)
    assert small.model.conv.out_channels == 1
    assert same(model, small.model, OTHER)


def test_sizes_in_the_code_are_noticed_and_obeyed() -> None:
    model = tiny(lambda y: y.view(-1, 8, 64).relu().view(-1, 8, 8, 8), dead=[0, 1])
    sizes = [names_sizes(node) for node in recorded(model).nodes if node.op == "view"]
    assert sizes == [True, True]
    small = ds.compact(model, X)
    assert small.model.conv.out_channels == 6
    assert same(model, small.model, torch.randn_like(X))


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y[:, 0].fill_(2.0),
        lambda y: y.flatten(2).mul_(3.0),
        lambda y: y.transpose(1, 2).add_(1.0),
        lambda y: y.__setitem__((slice(None), 0), 1.0),
        lambda y: y.data.add_(0.5),
        lambda y: y.detach().add_(0.5),
    ],
)
def test_writing_to_a_view_changes_what_it_shows(write: Between) -> None:
    def between(y: Tensor) -> Tensor:
        y = y.clone()
        write(y)
        return y

    model = tiny(between, dead=[0, 1], fixed=[3])
    small = ds.compact(model, X)
    assert same(model, small.model, OTHER)
    assert small.kept


class Branches(nn.Module):
    def __init__(self, join: Callable[[Tensor, Tensor], Tensor], width: int = 10) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
        self.b = nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6))
        self.head = nn.Conv2d(width, 2, 1)
        self.join = join

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.join(self.a(x), self.b(x)))


def branches(join: Callable[[Tensor, Tensor], Tensor], width: int = 10) -> Branches:
    torch.manual_seed(0)
    model = randomise(Branches(join, width))
    zero_channels(model.a[1], [1])
    zero_channels(model.b[1], [0, 5])
    return model  # type: ignore[return-value]


JOINS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: torch.cat([a, b], 1),
    lambda a, b: torch.cat((a, b), dim=-3),
    lambda a, b: torch.concat(tensors=[a, b], dim=1),
]


@pytest.mark.parametrize("join", JOINS)
def test_fixed_channels_lie_one_behind_the_other(join: Callable[[Tensor, Tensor], Tensor]) -> None:
    model = branches(join)
    node = node_of(analysed(model).graph, "cat")
    assert chosen(node.output.fixed) == [1, 4, 9]
    assert chosen(node.output.keep) == [0, 2, 3, 5, 6, 7, 8]
    small = ds.compact(model, X)
    assert (small.model.a[0].out_channels, small.model.b[0].out_channels, small.model.head.in_channels) == (3, 4, 7)
    assert same(model, small.model, OTHER)


def test_what_nobody_reads_behind_the_concatenation_goes() -> None:
    model = branches(JOINS[0])
    model.head.weight.data[:, [0, 6]] = 0
    small = ds.compact(model, X)
    assert (small.model.a[0].out_channels, small.model.b[0].out_channels) == (2, 3)
    assert same(model, small.model, OTHER)


def test_what_must_be_there_behind_the_concatenation_is_put_back_in_front_of_it() -> None:
    model = branches(lambda a, b: torch.cat([a, b], 1).flip(1))
    assert all(value.keep.all() for value in node_of(analysed(model).graph, "cat").inputs)
    small = ds.compact(model, X)
    assert small.model.a(X).shape[1] == 4
    assert small.model.a[0].out_channels == 3
    assert small.model.b(X).shape[1] == 6
    assert same(model, small.model, OTHER)


def test_with_itself() -> None:
    model = tiny(lambda y: torch.cat([y, y], 1), dead=[0, 1], head=16)
    small = ds.compact(model, X)
    assert small.model.head.in_channels == 12
    assert same(model, small.model, OTHER)


def test_with_itself_and_only_one_half_read() -> None:
    model = tiny(lambda y: torch.cat([y, y], 1), head=16)
    model.head.weight.data[:, :8] = 0
    model.head.weight.data[:, 9] = 0
    small = ds.compact(model, X)
    assert small.model.conv.out_channels == 7
    assert same(model, small.model, OTHER)


def test_with_the_input_of_the_model() -> None:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
            self.head = nn.Conv2d(7, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.cat([x, self.a(x)], 1))

    model = randomise(Dense())
    zero_channels(model.a[1], [2])
    small = ds.compact(model, X)
    assert small.model.head.in_channels == 6
    assert same(model, small.model, OTHER)


def test_a_constant_of_one_branch_folds_into_the_bias_behind() -> None:
    model = branches(JOINS[0])
    model.a[1].weight.data[3] = 0
    small = ds.compact(model, X)
    assert small.model.head.in_channels == 6
    assert same(model, small.model, OTHER)


@pytest.mark.parametrize("dim", [0, 2, -1])
def test_along_another_dimension_each_channel_goes_by_itself(dim: int) -> None:
    model = tiny(lambda y: torch.cat([y, y.flip(-1).exp()], dim), dead=[0], fixed=[2])
    assert not node_of(recorded(model), "cat").output.fixed.any()
    model = tiny(lambda y: torch.cat([y, 2 * y], dim), dead=[0], fixed=[2])
    small = ds.compact(model, X)
    assert small.model.head.in_channels == 7
    assert not small.kept
    assert same(model, small.model, OTHER)


def test_a_single_channel_can_be_sliced_where_heads_may_leave() -> None:
    model = tiny(lambda y: y[:, 3][:, :2].unsqueeze(1).expand(-1, 8, -1, -1), dead=[0])
    assert chosen(analysed(model, heads=True).layers[0][1].rows) == [3]
