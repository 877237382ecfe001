"""Matrix products and einsum: what is zero, what is read, what is cut."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.testing import check_rule
from tests.compaction.shrinks import shrinks
from tests.compaction.tiny import X, analysed, chosen, complement, node_of, recorded, tiny


def tokens(y: Tensor) -> Tensor:
    return y.flatten(2).transpose(1, 2)


def images(t: Tensor, y: Tensor) -> Tensor:
    return t.transpose(1, 2).reshape(t.shape[0], t.shape[2], *y.shape[2:])


def heads(y: Tensor) -> Tensor:
    n, t, c = tokens(y).shape
    return tokens(y).view(n, t, 2, c // 2).transpose(1, 2)


def joined(z: Tensor, y: Tensor) -> Tensor:
    return images(z.transpose(1, 2).flatten(2), y)


def written_out(y: Tensor) -> Tensor:
    q = heads(y)
    return joined((q @ q.transpose(-1, -2) * 0.3).softmax(-1) @ q, y)


def merged_with_the_batch(y: Tensor) -> Tensor:
    q = heads(y)
    n, h, t, d = q.shape
    q = q.reshape(n * h, t, d)
    scores = torch.baddbmm(torch.zeros(n * h, t, t, dtype=y.dtype), q, q.transpose(1, 2), beta=0)
    scores = scores.view(n, h, t, t).tanh().view(n * h, t, t)
    return joined(torch.bmm(scores.softmax(-1), q).view(n, h, t, d), y)


PRODUCTS: dict[str, Callable[[Tensor], Tensor]] = {
    "attention": written_out,
    "batch and heads merged": merged_with_the_batch,
    "over pixels": lambda y: images(tokens(y) @ (y.flatten(2) @ tokens(y)) / 64, y),
    "non-local": lambda y: images((tokens(y) @ y.flatten(2)).softmax(-1) @ tokens(y), y),
    "einsum": lambda y: torch.einsum("nchw,nchw->nc", y, y.relu())[:, :, None, None] * y,
    "einsum with an ellipsis": lambda y: torch.einsum("nc...,nd...->nc", y, y)[:, :, None, None] * y,
    "three factors": lambda y: torch.einsum("nchw, nchw, nc -> nchw", [y, y, y.mean((2, 3))]),
    "implicit result": lambda y: torch.einsum("nchw,nc", y, y.mean((2, 3))) * y,
    "vector": lambda y: torch.mv(y.mean((2, 3)), y.mean((0, 2, 3)))[:, None, None, None] * y,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_rule_holds(name: str) -> None:
    check_rule(PRODUCTS[name], trials=10)


# the oracle knows einsum of two tensors with all letters written
UNKNOWN_TO_THE_ORACLE = {"einsum with an ellipsis", "three factors", "implicit result"}


@pytest.mark.parametrize("name", [name for name in PRODUCTS if name not in UNKNOWN_TO_THE_ORACLE])
def test_nothing_dead_is_left(name: str) -> None:
    shrinks(tiny(PRODUCTS[name], dead=[0, 1, 2, 3, 5]))


def test_a_head_whose_values_are_zero_is_not_compared() -> None:
    def between(y: Tensor) -> Tensor:
        q, k, v = y.chunk(3, 1)
        return joined((heads(q) @ heads(k).transpose(-1, -2)).softmax(-1) @ heads(v), q)

    # the values are channels 8 to 11, and those of the first head are dead; so is channel 3, of the second
    model = tiny(between, dead=[3, 8, 9], width=12, head=4)
    analysis = analysed(model)
    first, second = (node for node in analysis.graph.nodes if node.op == "matmul")
    assert first.output.axis == 1
    assert chosen(second.output.fixed) == [0, 1]
    # partners of a dead query are not read either
    assert chosen(analysis.layers[0][1].rows) == [2, 6, 10, 11]
    shrinks(model)


class Stored(nn.Module):
    def __init__(self, shape: tuple[int, ...], apply: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.apply_it = nn.Parameter(torch.randn(shape)), apply

    def forward(self, y: Tensor) -> Tensor:
        return self.apply_it(y, self.weight)


def from_the_left(y: Tensor, weight: Tensor) -> Tensor:
    return (weight @ y.flatten(2)).unflatten(2, y.shape[2:])


def by_einsum(y: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("nchw,oc->nohw", y, weight)


@pytest.mark.parametrize("apply", [from_the_left, by_einsum])
def test_stored_factors_are_cut(apply: Callable[[Tensor, Tensor], Tensor]) -> None:
    model = tiny(Stored((6, 8), apply), dead=[0, 1, 5], fixed=[2], head=6)
    model.between.weight.data[4] = 0
    # the oracle sees no weights but those of layers
    small = shrinks(model, most=3)
    assert tuple(small.model.between.weight.shape) in {(6, 5), (5, 5)}
    assert small.model.head.in_channels == 5
    assert small.after.macs == ds.compaction.live_macs(model, X)


def test_constants_times_stored_factors_stay_constant() -> None:
    model = tiny(Stored((6, 8), by_einsum), fixed=[2], head=6)
    model.between.weight.data[3, complement(2)] = 0
    assert chosen(node_of(recorded(model), "einsum").output.fixed) == [3]
    assert shrinks(model, most=3).model.head.in_channels == 5


def test_a_sum_over_pixels_of_constants_is_not_constant() -> None:
    model = tiny(PRODUCTS["over pixels"], fixed=range(8))
    assert not any(node.output.fixed.any() for node in recorded(model).nodes if node.op == "matmul")


@pytest.mark.parametrize("equation", ["nnhw->nhw", "nchw,ncc->nhw"])
def test_a_diagonal_is_left_alone(equation: str) -> None:
    def between(y: Tensor) -> Tensor:
        square = y[:, :2] if equation[1] == "n" else y
        others = [y.mean((2, 3)).unsqueeze(1).expand(-1, 8, -1)] if "," in equation else []
        return torch.einsum(equation, square, *others)[:, None].expand(-1, 8, -1, -1)

    model = tiny(between, dead=[0])
    node = node_of(recorded(model), "einsum")
    assert node.output.axes is None
    assert np.isfinite(ds.compact(model, X).max_difference)


class Scores(nn.Module):
    """A product of two layers, with dead channels in both."""

    def __init__(self, returns: bool) -> None:
        super().__init__()
        self.first, self.second, self.returns = nn.Linear(4, 8), nn.Linear(4, 8), returns

    def forward(self, x: Tensor) -> list[Tensor]:
        a, b = self.first(x), self.second(x)
        return [a @ b.transpose(1, 2), *([b] if self.returns else [])]


@pytest.mark.parametrize("returns", [False, True])
def test_a_channel_leaves_a_sum_of_products_if_one_factor_is_zero(returns: bool) -> None:
    model = Scores(returns).double().eval()
    for layer, dead in ((model.first, [0, 1, 2]), (model.second, [2, 3])):
        layer.weight.data[dead] = 0
        layer.bias.data[dead] = 0
    small = ds.compact(model, torch.randn(2, 5, 4, dtype=torch.float64))
    # where the second factor is returned as a whole, zeros of the first one have to be there
    assert small.model.first.out_features == 4
    assert small.model.second.out_features == (6 if returns else 4)
    x = torch.randn(3, 7, 4, dtype=torch.float64)
    for got, expected in zip(small.model(x), model(x), strict=True):
        assert torch.allclose(got, expected, rtol=0, atol=1e-12)
