import itertools

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.plot.theme import DARK, LIGHT
from tests.plot.examples import attention, compacted, small_net

pytest.importorskip("matplotlib")


def lengths(axes: object) -> list[float]:
    return [patch.get_width() for patch in axes.patches]


def names(axes: object) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def legend(figure: object) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_widths_before_and_after() -> None:
    figure = ds.plot.widths(compacted())
    (axes,) = figure.axes
    assert names(axes) == ["0", "3", "7"]
    assert lengths(axes) == [4, 6, 2, 1, 5, 2]
    assert legend(figure) == ["before", "after"]
    assert axes.get_xlabel() == "outputs of the layer"


def test_a_compacted_model_draws_itself() -> None:
    small = compacted()
    assert lengths(small.plot().axes[0]) == lengths(ds.plot.widths(small).axes[0])
    assert small.plot(dark=True).get_facecolor() == ds.plot.widths(small, dark=True).get_facecolor()


def test_a_bar_for_every_layer_of_every_network() -> None:
    figure = ds.plot.widths({"whole": {"a": 8, "b": 4}, "half": {"a": 3}, "least": {"a": 1, "b": 2}})
    (axes,) = figure.axes
    assert lengths(axes) == [8, 4, 3, 0, 1, 2]
    # bars in front do not cover each other
    edges = sorted((patch.get_y(), patch.get_y() + patch.get_height()) for patch in axes.patches[2:])
    assert all(below <= above + 1e-9 for (_, below), (above, _) in itertools.pairwise(edges))
    assert names(axes) == ["a", "b"]
    assert legend(figure) == ["whole", "half", "least"]


def test_many_layers_stay_on_a_page() -> None:
    figure = ds.plot.widths({"whole": {f"layer{i}": 8 for i in range(400)}, "small": {}})
    assert figure.get_size_inches()[1] <= 16
    assert len(names(figure.axes[0])) <= 75


def test_nothing_to_draw() -> None:
    for nothing in ({}, {"whole": {}}):
        with pytest.raises(ds.SparsityError, match="no layers whose widths"):
            ds.plot.widths(nothing)
    with pytest.raises(ds.SparsityError, match="what `compact` returned, or a budget, not Linear"):
        ds.plot.widths(nn.Linear(2, 2))


def test_zeros_of_gates_by_layer() -> None:
    gated = ds.sparsify(small_net())
    figure = ds.plot.zeros(gated)
    (axes,) = figure.axes
    assert names(axes) == ["1", "4"]
    assert lengths(axes) == [1, 5, 3, 1]
    # what is zero begins where what is left ends
    assert [patch.get_x() for patch in axes.patches] == [0, 0, 1, 5]
    assert [text.get_text() for text in axes.texts] == ["75%", "17%"]
    assert "4 of 10 are zero (40.0%)" in axes.get_xlabel()
    assert legend(figure) == ["left", "zero"]


def test_zeros_of_scales_without_gates() -> None:
    assert lengths(ds.plot.zeros(small_net()).axes[0]) == [1, 5, 3, 1]
    with pytest.raises(ds.SparsityError, match="Linear has neither gates nor batch norms"):
        ds.plot.zeros(nn.Linear(2, 2))


def test_heads_and_neurons_that_died() -> None:
    model, x = attention()
    figure = ds.plot.heads(ds.compact(model, x))
    left, right = figure.axes
    assert names(left) == ["layers.0.self_attn", "layers.1.self_attn"]
    assert lengths(left) == [4, 4, 3, 4]
    assert names(right) == ["layers.0.linear1", "layers.1.linear1"]
    assert lengths(right) == [16, 16, 8, 16]
    assert [axes.get_xlabel() for axes in figure.axes] == ["heads of the block", "neurons of the block"]


def test_heads_of_a_network_without_attention() -> None:
    with pytest.raises(ds.SparsityError, match="no attention in this network"):
        ds.plot.heads(compacted())


@pytest.mark.parametrize("dark", [False, True])
def test_words_can_be_read_on_the_paper(dark: bool) -> None:
    from matplotlib.colors import to_rgb

    figure = ds.plot.widths(compacted(), dark=dark)
    paper, theme = sum(figure.get_facecolor()[:3]), DARK if dark else LIGHT
    assert to_rgb(theme.paper) == pytest.approx(figure.get_facecolor()[:3])
    words = [*figure.legends[0].get_texts(), figure.axes[0].xaxis.label, *figure.axes[0].get_yticklabels()]
    for text in words:
        assert abs(sum(to_rgb(text.get_color())) - paper) > 1
    for bar in figure.axes[0].patches:
        assert abs(sum(bar.get_facecolor()[:3]) - paper) > 0.3


def test_pictures_of_features_have_names_here() -> None:
    assert {"graph", "wiring"} <= set(dir(ds.plot))
    adjacency = torch.tensor([[0.0, 0.5], [0.5, 0.0]])
    assert len(ds.plot.graph(adjacency).axes[0].collections) == 2
    with pytest.raises(AttributeError, match=r"'diffsparse.plot' has no attribute 'nothing'"):
        _ = ds.plot.nothing


def test_wiring_on_dark_paper() -> None:
    from matplotlib.colors import to_rgb

    from diffsparse.wiring.mobilenet import WiredMobileNet

    net = WiredMobileNet(width=0.125, small=True)
    for dark in (False, True):
        figure = ds.plot.wiring(net, dark=dark)
        alive = next(line for line in figure.axes[0].get_legend().get_lines() if line.get_label() == "node alive")
        assert abs(sum(to_rgb(alive.get_color())) - sum(figure.get_facecolor()[:3])) > 1
        assert "edges alive" in figure.get_suptitle()
