"""Arithmetic on tensors whose channels lie along several dimensions, or along different ones."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.testing import check_rule
from tests.compaction.nets import same
from tests.compaction.tiny import OTHER, X, analysed, chosen, node_of, recorded, tiny


def as_heads(y: Tensor) -> Tensor:
    return y.view(y.shape[0], 2, y.shape[1] // 2, *y.shape[2:])


class Scaled(nn.Module):
    """A scale per head, in the middle of a reshape."""

    def __init__(self, scale: list[float]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale).view(2, 1, 1, 1))

    def forward(self, y: Tensor) -> Tensor:
        return (as_heads(y) * self.scale).reshape(y.shape)


def test_a_zero_scale_kills_its_head() -> None:
    model = tiny(Scaled([1.0, 0.0]), dead=[0])
    small = ds.compact(model, X)
    assert small.model.conv.out_channels == 3
    assert small.model.head.in_channels == 3
    assert same(model, small.model, OTHER)


ARITHMETIC: dict[str, Callable[[Tensor], Tensor]] = {
    "activation": lambda y: F.gelu(as_heads(y)).reshape(y.shape),
    "number": lambda y: (as_heads(y) * 0.5).reshape(y.shape),
    "sum over heads": lambda y: (as_heads(y) + as_heads(y).roll(1, 1)).reshape(y.shape),
    "product": lambda y: (as_heads(y) * as_heads(y).flip(2)).reshape(y.shape),
    "one channel": lambda y: y * y[:, 1].unsqueeze(1),
    "dropout": lambda y: F.dropout(as_heads(y), 0.5, training=False).clone().reshape(y.shape),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_rule_holds(name: str) -> None:
    check_rule(ARITHMETIC[name], trials=15)


def test_an_activation_among_heads_keeps_what_is_known() -> None:
    model = tiny(ARITHMETIC["activation"], dead=[0, 5], fixed=[2])
    out = node_of(recorded(model), "gelu").output
    assert out.axes == (1, 2)
    assert chosen(out.fixed) == [0, 2, 5]
    small = ds.compact(model, X)
    assert small.model.conv.out_channels == 5
    assert small.model.head.in_channels == 5
    assert same(model, small.model, OTHER)


def test_a_number_of_the_code_leaves_only_zeros_known() -> None:
    model = tiny(ARITHMETIC["number"], dead=[0], fixed=[2])
    assert chosen(node_of(recorded(model), "mul").output.fixed) == [0]
    assert same(model, ds.compact(model, X).model, OTHER)


def test_a_factor_whose_partner_is_zero_is_not_read() -> None:
    def between(y: Tensor) -> Tensor:
        return (as_heads(y)[:, 0] * as_heads(y)[:, 1]).contiguous()

    model = tiny(between, dead=[1], head=4)
    analysis = analysed(model)
    assert chosen(analysis.layers[0][1].rows) == [0, 2, 3, 4, 6, 7]
    small = ds.compact(model, X)
    assert small.model.conv.out_channels == 6
    assert same(model, small.model, OTHER)


def test_an_outer_product_has_channels_along_both_dimensions() -> None:
    def between(y: Tensor) -> Tensor:
        pooled = y.mean((2, 3))
        return (pooled.unsqueeze(1) * pooled.unsqueeze(2)).flatten(1)

    model = tiny(between, dead=[0, 3], head=nn.Linear(64, 3))
    out = node_of(recorded(model), "mul").output
    assert out.axes == (1, 2)
    assert np.array_equal(~out.fixed.reshape(8, 8), np.outer(*[[i not in (0, 3) for i in range(8)]] * 2))
    small = ds.compact(model, X)
    assert small.model.conv.out_channels == 6
    assert small.model.head.in_features == 36
    assert any("different dimensions" in entry.reason for entry in small.kept)
    assert same(model, small.model, OTHER)
