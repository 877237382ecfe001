import itertools

import pytest
from diffsparse.plot.widths import draw_widths, layer_widths
from torch import nn

import diffsparse as ds


def test_outputs_of_layers_with_weights() -> None:
    net = nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3), nn.Sequential(nn.ReLU(), nn.Linear(5, 4)))
    assert layer_widths(net) == {"0": 3, "2.1": 4}


def test_a_bar_for_every_layer_of_every_network() -> None:
    pytest.importorskip("matplotlib")
    figure = draw_widths({"whole": {"a": 8, "b": 4}, "half": {"a": 3}, "least": {"a": 1, "b": 2}})
    (axes,) = figure.axes
    assert [patch.get_width() for patch in axes.patches] == [8, 4, 3, 0, 1, 2]
    # no bar covers another
    edges = sorted((patch.get_y(), patch.get_y() + patch.get_height()) for patch in axes.patches)
    assert all(below <= above + 1e-9 for (_, below), (above, _) in itertools.pairwise(edges))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["whole", "half", "least"]


def test_nothing_to_draw() -> None:
    for nothing in ({}, {"whole": {}}):
        with pytest.raises(ds.SparsityError, match="no layers whose widths"):
            draw_widths(nothing)
