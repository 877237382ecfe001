"""Stored vectors, what is computed from them, and what happens where they meet the channels of something else."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from tests.compaction.nets import same

X = torch.randn(2, 3, 10, 10).double()
OTHER = torch.randn(3, 3, 7, 13).double()
DEAD, LIVE = [0, 2, 3, 6], [1, 4, 5, 7]


class Scaled(nn.Module):
    """Two convolutions; what comes between them is a function of the maps and a stored vector with zeros."""

    def __init__(self, use: Callable[["Scaled", Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 2, 3)
        self.vector, self.other = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))
        self.register_buffer("mean", torch.randn(8))
        self.register_buffer("variance", 0.5 + torch.rand(8))
        self.vector.data[DEAD] = 0
        self.use = use
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.use(self, self.first(x)))


def column(vector: Tensor) -> Tensor:
    return vector[:, None, None]


def thresholded(net: Scaled) -> Tensor:
    """A gate whose threshold is a share of the norm of all entries."""
    return torch.sign(net.other) * F.relu(net.other.abs() - 0.1 * net.other.abs().sum())


NARROW: dict[str, Callable[[Scaled, Tensor], Tensor]] = {
    "as it is": lambda net, x: x * column(net.vector),
    "after a sum": lambda net, x: (x + column(net.other)) * column(net.vector),
    "used twice": lambda net, x: x * column(net.vector) + x.relu() * column(net.vector.abs()),
    "product of two": lambda net, x: x * column(net.vector * net.other),
    "like another": lambda net, x: x * column(net.vector.to(x)) * column(net.vector.type_as(x)),
    "expanded as": lambda net, x: x * column(net.vector).expand_as(x),
    "spread": lambda net, x: x * column(net.vector).expand(-1, x.shape[2], x.shape[3]),
    "returned by a cast": lambda net, x: x * column(net.vector.contiguous().to(torch.float64)),
    "over the last dimension": lambda net, x: (x.movedim(1, -1) * (net.vector / 3)).movedim(-1, 1),
    "batch norm": lambda net, x: F.batch_norm(x, net.mean, net.variance, net.vector * 2, net.vector * net.other),
}
WIDE: dict[str, Callable[[Scaled, Tensor], Tensor]] = {
    "normalised": lambda net, x: x * column(net.vector / net.vector.norm()),
    "threshold of all": lambda net, x: x * column(thresholded(net)),
    "softmax": lambda net, x: x * column(net.vector * net.other.softmax(0)),
    "picked by position": lambda net, x: x * column(net.vector.flip(0)),
}


@pytest.mark.parametrize("use", NARROW.values(), ids=NARROW)
def test_zeros_of_a_vector_leave(use) -> None:
    net = Scaled(use)
    small = ds.compact(net, X)
    assert (small.model.first.out_channels, small.model.last.in_channels) == (4, 4)
    assert torch.equal(small.model.vector, net.vector[LIVE])
    assert not small.fallbacks
    assert not small.kept
    assert same(net, small.model, OTHER)


@pytest.mark.parametrize("use", WIDE.values(), ids=WIDE)
def test_a_vector_that_is_computed_as_a_whole_stays_and_layers_shrink(use) -> None:
    net = Scaled(use)
    scale = use(net, torch.ones(1, 8, 1, 1).double())[0, :, 0, 0]
    alive = int((scale != 0).sum())
    small = ds.compact(net, X)
    assert 0 < alive < 8
    assert (small.model.first.out_channels, small.model.last.in_channels) == (alive, alive)
    assert tuple(small.model.vector.shape) == (8,)
    assert same(net, small.model, OTHER)


def test_shared_with_a_layer() -> None:
    class Shared(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            return self.last(F.batch_norm(self.first(x), self.mean, self.variance) * column(self.mean.abs()))

    net = Shared(lambda net, x: x)
    net.mean[DEAD] = 0
    small = ds.compact(net, X)
    assert same(net, small.model, OTHER)


def test_returned_by_the_model() -> None:
    class Both(Scaled):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(x), self.vector

    net = Both(lambda net, x: x * column(net.vector))
    small = ds.compact(net, X)
    assert torch.equal(small.model(OTHER)[1], net.vector)
    assert small.model.first.out_channels == 4


SIZED: dict[str, Callable[[Scaled, Tensor], Tensor]] = {
    "number of pixels": lambda net, x: F.relu(x * column(net.vector) + column(net.other + 0.001 * x.shape[-1])),
    "threshold": lambda net, x: x * column((net.other > 0.05 * x.shape[-1]).double()),
    "only zeros are sure": lambda net, x: x * column(net.vector * x.shape[-1]),
}


@pytest.mark.parametrize("use", SIZED.values(), ids=SIZED)
def test_a_number_that_depends_on_the_size(use) -> None:
    net = Scaled(use)
    small = ds.compact(net, X)
    for shape in ((2, 3, 10, 10), (1, 3, 40, 40), (3, 3, 9, 14)):
        assert same(net, small.model, torch.randn(shape).double())


def test_zeros_survive_a_number_that_depends_on_the_size() -> None:
    assert ds.compact(Scaled(SIZED["only zeros are sure"]), X).model.first.out_channels == 4


def test_zeros_that_are_multiplied_with_the_input_itself() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.tensor([1.0, 0.0, 2.0])[:, None, None])
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x * self.mask)

    net = Masked().double().eval()
    small = ds.compact(net, X)
    assert small.model.conv.in_channels == 2
    assert not small.kept
    assert same(net, small.model, OTHER)


def test_a_vector_over_another_dimension_than_the_channels() -> None:
    class Columns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 2, 3)
            self.window = nn.Parameter(torch.randn(8).abs())
            self.first.weight.data[::2] = 0
            self.first.bias.data[::2] = 0

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x) * (self.window * 2))

    net = Columns().double().eval()
    small = ds.compact(net, X)
    assert small.model.first.out_channels == 4
    assert same(net, small.model, torch.randn(3, 3, 7, 10).double())


@pytest.mark.parametrize("op", [torch.log, torch.rsqrt, torch.reciprocal])
def test_what_is_not_read_is_no_infinity(op) -> None:
    class Residual(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.last(x + op(self.middle(x).abs()) * column(self.vector))

    net = Residual(lambda net, x: x)
    net.middle = nn.Conv2d(8, 8, 1).double()
    small = ds.compact(net, X)
    assert small.model.middle.out_channels == 4
    assert same(net, small.model, OTHER)


def test_a_dead_vector() -> None:
    net = Scaled(NARROW["product of two"])
    net.vector.data.zero_()
    with pytest.warns(ds.SparsityWarning, match="no longer depends on its input"):
        small = ds.compact(net, X)
    assert same(net, small.model, OTHER)
