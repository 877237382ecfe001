"""Sampling, pooling with indices, maxima with indices, gated linear units."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from diffsparse.testing import check_rule
from tests.compaction.shrinks import shrinks
from tests.compaction.tiny import OTHER, analysed, chosen, node_of, recorded, tiny


def sampled(y: Tensor, padding_mode: str = "zeros") -> Tensor:
    places = torch.linspace(-1.2, 1.2, 10, dtype=y.dtype).view(5, 2).expand(y.shape[0], 3, 5, 2)
    return F.grid_sample(y, places, padding_mode=padding_mode, align_corners=False)


def unpooled(y: Tensor) -> Tensor:
    pooled, places = F.max_pool2d(y, 2, return_indices=True)
    return F.max_unpool2d(pooled, places, 2)


OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "grid_sample": sampled,
    "grid_sample at the border": lambda y: sampled(y, "border"),
    "max_unpool": unpooled,
    "adaptive pooling with indices": lambda y: F.adaptive_max_pool2d(y, 3, return_indices=True)[0],
    "max": lambda y: y.max(2).values.unsqueeze(2) + y,
    "min": lambda y: torch.min(y, -1, keepdim=True)[0] * y,
    "max over channels": lambda y: y * y.max(1, keepdim=True)[0],
    "max of everything": lambda y: y * y.max(),
    "max of two": lambda y: torch.max(y, 2 * y),
    "topk": lambda y: y.topk(3, dim=2)[0],
    "sort": lambda y: y.sort(-1).values,
    "kthvalue": lambda y: y * y.kthvalue(2, 2)[0].unsqueeze(2),
    "cummax": lambda y: y.cummax(3)[0],
    "glu": lambda y: F.glu(y, 1),
    "glu of pixels": lambda y: F.glu(F.pad(y, (0, y.shape[-1] % 2)), -1),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_rule_holds(name: str) -> None:
    check_rule(OPERATORS[name], trials=10, must_remove=name != "glu of pixels")


@pytest.mark.parametrize("name", [name for name in OPERATORS if "glu" not in name])
def test_nothing_dead_is_left(name: str) -> None:
    shrinks(tiny(OPERATORS[name], dead=[0, 1, 2, 3, 5]))


@pytest.mark.parametrize("name", ["grid_sample at the border", "max", "topk", "sort"])
def test_constants_stay_constant(name: str) -> None:
    small = shrinks(tiny(OPERATORS[name], dead=[0], fixed=[3]))
    assert small.model.head.in_channels == 6
    assert not small.kept


def test_constants_vary_where_zeros_lie_around_them() -> None:
    for name, op in (("grid_sample", "grid_sample"), ("max_unpool", "max_unpool2d")):
        node = node_of(recorded(tiny(OPERATORS[name], dead=[0], fixed=[3])), op)
        assert chosen(node.output.fixed) == [0]


def test_places_are_read_of_the_channels_that_are() -> None:
    def between(y: Tensor) -> Tensor:
        return F.max_pool2d(y, 2, return_indices=True)[1].double()

    model = tiny(between, dead=[0])
    model.head.weight.data[:, 2] = 0
    # where the maximum of a constant lies is not known
    assert chosen(analysed(model).layers[1][1].output.need) == [0, 1, 3, 4, 5, 6, 7]
    # whole numbers have no gradient for the oracle
    shrinks(model, most=5)


def test_a_gated_linear_unit_loses_both_halves() -> None:
    model = tiny(OPERATORS["glu"], dead=[0, 6], head=4)
    model.head.weight.data[:, 3] = 0
    analysis = analysed(model)
    assert chosen(node_of(analysis.graph, "glu").output.fixed) == [0]
    # a zero times a half needs no gate, but a gate of zero halves
    assert chosen(analysis.layers[0][1].rows) == [1, 2, 5]
    small = shrinks(model, others=(OTHER,))
    assert small.model.head.in_channels == 2
    assert not small.kept
