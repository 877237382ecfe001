"""Concatenation: layouts one behind the other."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.rules import OPAQUE
from diffsparse.testing import zero_channels
from tests.compaction.nets import randomise, same
from tests.compaction.tiny import OTHER, X, analysed, chosen, node_of, recorded, tiny


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
def test_along_another_dimension_everything_is_kept(dim: int) -> None:
    model = tiny(lambda y: torch.cat([y, y], dim), dead=[0])
    assert node_of(recorded(model), "cat").rule is OPAQUE
    assert same(model, ds.compact(model, X).model, OTHER)


def test_a_stack_keeps_everything_and_says_so() -> None:
    model = tiny(lambda y: torch.stack([y, y]).sum(0), dead=[0])
    small = ds.compact(model, X)
    assert any("stack: an operation without a rule" in entry.reason for entry in small.kept)
    assert small.model.conv.out_channels == 7
    assert same(model, small.model, OTHER)
