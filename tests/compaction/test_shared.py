"""Modules that are called several times: one width for all calls, a select and an expand around each."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from tests.compaction.nets import randomise, same

X, OTHER = (torch.randn(*shape, dtype=torch.float64) for shape in ((2, 3, 8, 8), (3, 3, 11, 9)))


def killed(norm: Any, *channels: int, shift: float | None = 0.0) -> None:
    """These channels become constant: `shift`, or what the norm has there."""
    for channel in channels:
        norm.weight.data[channel] = 0
        if shift is not None:
            norm.bias.data[channel] = shift


class Siamese(nn.Module):
    """One tower for two branches with norms of their own, whose results are concatenated."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.left, self.right = (nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)) for _ in range(2))
        self.conv, self.norm = nn.Conv2d(8, settings.pop("outputs", 6), 3, **settings), nn.BatchNorm2d(6)
        self.head = nn.Conv2d(12, 2, 1)

    def tower(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(torch.hstack([self.tower(self.left(x)), self.tower(self.right(x))]))
        return y


def compacted(model: nn.Module, x: Tensor = X, other: Tensor = OTHER, **options: Any) -> Any:
    """The compact model, compared at another size; nothing was given up on the way."""
    small = ds.compact(model, x, **options)
    assert not small.fallbacks
    assert same(model, small.model, other)
    return small.model


def siamese(**settings: Any) -> Any:
    return randomise(Siamese(**settings))


def test_the_union_of_what_the_calls_need_is_computed() -> None:
    model = siamese(padding=1)
    killed(model.left[1], 0, 1, 2)
    killed(model.right[1], 1, 2, 3)
    killed(model.norm, 4, 5)
    small = compacted(model)
    assert tuple(small.conv.weight.shape) == (4, 6, 3, 3)
    # concatenated by position, so both calls are followed by an expand
    assert (small.norm.num_features, small.norm.expand_fill.numel()) == (4, 6)


def test_a_call_that_nobody_reads() -> None:
    model = siamese(padding=1)
    model.head.weight.data[:, :6] = 0
    model.head.weight.data[:, 8] = 0
    killed(model.right[1], 0, 1)
    assert compacted(model).conv.out_channels == 5


@pytest.mark.parametrize("padding", [0, 1])
def test_a_constant_that_is_the_same_in_all_calls_goes(padding: int) -> None:
    model = siamese(padding=padding)
    for norm in (model.left[1], model.right[1]):
        killed(norm, 0, 1, shift=0.75)
        killed(norm, 2, shift=-0.5)
    small = compacted(model)
    # in front of zero padding, one of them stands for all
    assert small.conv.in_channels == 5 + padding


@pytest.mark.parametrize("padding", [0, 1])
def test_a_constant_that_differs_between_calls_is_computed(padding: int) -> None:
    model = siamese(padding=padding)
    killed(model.left[1], 0, 1, shift=0.75)
    killed(model.right[1], 0, 1, shift=0.5)
    assert compacted(model).conv.in_channels == 8


def test_a_zero_in_one_call_is_another_number_in_the_next() -> None:
    model = siamese(padding=1)
    killed(model.left[1], 0, 1)
    killed(model.right[1], 0, 1, shift=0.5)
    assert compacted(model).conv.in_channels == 8


def test_outputs_that_are_other_constants_in_other_calls() -> None:
    model = siamese()
    # output 0 reads input 0 only, which is constant in both calls
    model.conv.weight.data[0, 1:] = 0
    killed(model.left[1], 0, shift=0.75)
    killed(model.right[1], 0, shift=0.5)
    # the activation lets both through, and a head with padding reads them
    model.norm.bias.data[0] = 50.0
    model.head = nn.Conv2d(12, 2, 3, padding=1).double()
    assert compacted(model).conv.out_channels == 6


def test_a_depthwise_layer_loses_what_no_call_needs() -> None:
    model = randomise(Siamese(outputs=8, groups=8, padding=1))
    model.norm, model.head = randomise(nn.BatchNorm2d(8)), nn.Conv2d(16, 2, 1).double()
    killed(model.left[1], 0, 1)
    killed(model.right[1], 1, 2)
    killed(model.norm, 6, 7)
    model.conv.bias.data.zero_()
    small = compacted(model)
    assert (small.conv.groups, small.conv.out_channels) == (5, 5)


def test_every_output_dead_in_all_calls() -> None:
    model = siamese()
    killed(model.norm, *range(6), shift=0.5)
    with pytest.warns(ds.SparsityWarning, match="no longer depends"):
        small = ds.compact(model, X)
    assert same(model, small.model, OTHER)
    assert type(small.model.conv).__name__ != "Conv2d"


@pytest.mark.parametrize("options", [{"round_to": 4}, {"fold": True}, {"round_to": 4, "fold": True}])
def test_with_options(options: dict[str, Any]) -> None:
    model = siamese(padding=1)
    killed(model.left[1], 0, 1, 2, shift=0.5)
    killed(model.right[1], 1, 2, 3, shift=0.5)
    killed(model.norm, 5)
    compacted(model, **options)


def test_a_saved_model_computes_the_same(tmp_path: Path) -> None:
    model = siamese(padding=1)
    killed(model.left[1], 0, 1, 2, shift=0.5)
    killed(model.right[1], 0, 1, 3, shift=0.5)
    killed(model.norm, 5, shift=0.25)
    ds.save(ds.compact(model, X), tmp_path / "net.safetensors")
    again = ds.load(tmp_path / "net.safetensors", Siamese(padding=1))
    assert same(model, again.double().eval(), OTHER)


def test_training_goes_on_as_before() -> None:
    model = siamese(padding=1)
    killed(model.left[1], 0, 1, 2)
    killed(model.right[1], 0, 1, 3)
    # what is dead must stay so: the norms do not train
    frozen = [p for norm in (model.left[1], model.right[1], model.norm) for p in norm.parameters()]
    for parameter in frozen:
        parameter.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9)
    model(X).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    small = ds.compact(model, X)
    others = ds.slice_optimizer(optimizer, model, small)
    for _ in range(5):
        for net, steps in ((model, optimizer), (small.model, others)):
            steps.zero_grad()
            net(OTHER).square().mean().backward()
            steps.step()
    assert same(model, small.model, X)


class Looped(nn.Module):
    """A cell over the steps of a sequence, with a state that starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.cell, self.head = nn.BatchNorm1d(5), nn.Linear(11, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), 6)
        for step in x.unbind(1):
            h = torch.tanh(self.cell(torch.cat([self.norm(step), h], 1)))
        y: Tensor = self.head(h)
        return y


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_a_loop_of_another_length(shift: float) -> None:
    model: Any = randomise(Looped())
    killed(model.norm, 0, 3, shift=shift)
    # a state that is constant, and another constant at each step
    model.cell.weight.data[2] = 0
    small = ds.compact(model, torch.randn(2, 3, 5, dtype=torch.float64)).model
    assert small.cell.in_features == 9
    for length in (1, 2, 5, 9):
        assert same(model, small, torch.randn(3, length, 5, dtype=torch.float64))


def test_rows_and_sequences() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.one, self.two = nn.BatchNorm1d(5), nn.Linear(5, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x)
            return self.two(self.one(torch.stack([y, y * 2], 1)).tanh()).mean(1) + self.two(self.one(y).relu())

    model: Any = randomise(Net())
    killed(model.norm, 0, 1)
    small = compacted(model, torch.randn(2, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64))
    assert small.one.in_features == 3


def test_hooks_see_what_the_code_around_the_layer_sees() -> None:
    model = siamese(padding=1)
    killed(model.left[1], 0, 1, 2)
    killed(model.right[1], 0, 1, 3)
    killed(model.norm, 5, shift=0.25)
    small = ds.compact(model, X).model
    seen: list[tuple[int, ...]] = []
    small.norm.register_forward_hook(lambda m, i, o: seen.append(tuple(o.shape)))
    small(X)
    assert seen == [(2, 6, 8, 8)] * 2
