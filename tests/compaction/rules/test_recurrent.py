"""Inputs of recurrent layers."""

from collections.abc import Callable

import pytest
from torch import Tensor, nn

import diffsparse as ds
from tests.compaction.nets import same
from tests.compaction.tiny import OTHER, X, tiny


class Over(nn.Module):
    """A recurrent layer over the pixels of an image."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, y: Tensor) -> Tensor:
        out, _ = self.layer(y.flatten(2).permute(0, 2, 1))
        return out.permute(0, 2, 1).unflatten(2, y.shape[2:])


LAYERS: dict[str, tuple[Callable[[], nn.RNNBase], int]] = {
    "lstm": (lambda: nn.LSTM(8, 5, batch_first=True), 5),
    "two layers, both ways": (lambda: nn.LSTM(8, 5, 2, batch_first=True, bidirectional=True), 10),
    "gru": (lambda: nn.GRU(8, 5, batch_first=True, bias=False), 5),
    "rnn": (lambda: nn.RNN(8, 5, batch_first=True), 5),
}


@pytest.mark.parametrize("name", LAYERS)
def test_zero_inputs_leave(name: str) -> None:
    make, width = LAYERS[name]
    model = tiny(Over(make()), dead=[0, 1, 5], fixed=[2], head=width)
    small = ds.compact(model, X)
    layer = small.model.between.layer
    assert layer.input_size == layer.weight_ih_l0.shape[1] == 5
    assert small.model.conv.out_channels == 4
    assert same(model, small.model, OTHER)
    assert not small.fallbacks
    assert not small.kept


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_macs_are_counted(name: str) -> None:
    make, width = LAYERS[name]
    model = tiny(Over(make()), dead=[0, 1, 5], head=width)
    assert ds.compaction.live_macs(model, X) == ds.compact(model, X).after.macs


def test_a_state_that_is_given_keeps_the_width() -> None:
    class Stateful(Over):
        def forward(self, y: Tensor) -> Tensor:
            sequence = y.flatten(2).permute(0, 2, 1)
            state = sequence.new_zeros(1, y.shape[0], 5)
            out, _ = self.layer(sequence, (state, state + 1))
            return out.permute(0, 2, 1).unflatten(2, y.shape[2:])

    model = tiny(Stateful(nn.LSTM(8, 5, batch_first=True)), dead=[0, 1], head=5)
    small = ds.compact(model, X)
    assert small.model.between.layer.input_size == 8
    assert any("lstm" in entry.reason for entry in small.kept)
    assert same(model, small.model, OTHER)
