"""Numbers that Python computed are trusted one by one: those that differ at another size are not."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.trust import EVERYWHERE, assumes_something, untrusted_places
from tests.compaction.nets import randomise, same
from tests.compaction.tiny import recorded

X, LONGER = torch.randn(2, 3, 16, dtype=torch.float64), torch.randn(3, 3, 21, dtype=torch.float64)


class Scaled(nn.Module):
    """A layer whose weights are computed with `of`, beside arithmetic that takes the length of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stride", torch.tensor(2))
        self.norm, self.scale = nn.BatchNorm1d(3), nn.Parameter(torch.tensor(0.5))
        self.weight, self.head = nn.Parameter(torch.randn(4, 3, 1)), nn.Conv1d(4, 2, 1)

    def of(self, x: Tensor) -> float:
        return 3.0

    def forward(self, x: Tensor) -> Tensor:
        extra = self.stride - x.shape[-1] % 2 - 1
        x = F.pad(self.norm(x), (extra, self.stride))
        y: Tensor = self.head(F.conv1d(x, self.weight * self.scale * self.of(x)))
        return y


class OfLength(Scaled):
    def of(self, x: Tensor) -> float:
        return float(x.shape[-1])


class Branching(Scaled):
    """More is done at some sizes."""

    def forward(self, x: Tensor) -> Tensor:
        y = x if x.shape[-1] % 2 else x - x.mean() * (self.stride - x.shape[-1])
        return super().forward(y)


def test_numbers_that_differ_are_doubted_alone() -> None:
    model = randomise(Scaled())
    graph = recorded(model, X)
    places = untrusted_places(graph, [recorded(model, LONGER)])
    assert {graph.nodes[place].op for place in places} <= {"sub", "rsub"}
    assert places


def test_what_is_beside_them_is_followed() -> None:
    for kind in (Scaled, Branching):
        model = randomise(kind())
        model.norm.weight.data[1] = 0  # type: ignore[union-attr, operator]
        model.norm.bias.data[1] = 0  # type: ignore[union-attr, operator]
        small = ds.compact(model, X)
        assert not small.fallbacks
        for length in (5, 8, 17):
            assert same(model, small.model, torch.randn(3, 3, length, dtype=torch.float64))


def test_weights_that_differ_make_all_doubtful() -> None:
    model = randomise(OfLength())
    assert untrusted_places(recorded(model, X), [recorded(model, LONGER)]) is EVERYWHERE
    small = ds.compact(model, X)
    assert same(model, small.model, torch.randn(3, 3, 7, dtype=torch.float64))


def test_nothing_assumed_nothing_doubted() -> None:
    model = randomise(nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4)))
    assert not assumes_something(recorded(model, X))


def test_nothing_is_trusted_that_cannot_be_compared() -> None:
    assert untrusted_places(recorded(randomise(Scaled()), X), []) is EVERYWHERE


class ByParity(nn.Conv1d):
    """Weights that are twice as large at odd lengths."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(x, self.weight * (1 + x.shape[-1] % 2), self.bias)


def test_numbers_that_differ_at_few_sizes_are_not_baked() -> None:
    # lengths of 12, 20 and 28 become 4, 6 and 8 in the second recording, which are even, too
    for length in (12, 20, 28):
        model = randomise(nn.Sequential(nn.BatchNorm1d(3), ByParity(3, 4, 1), nn.BatchNorm1d(4), nn.Conv1d(4, 2, 1)))
        model[2].weight.data[0] = model[2].bias.data[0] = 0
        small = ds.compact(model.eval(), torch.randn(2, 3, length, dtype=torch.float64)).model
        for other in (7, 12, 13):
            x = torch.randn(2, 3, other, dtype=torch.float64)
            assert torch.allclose(model(x), small(x), rtol=0, atol=1e-10)
