import numpy as np
import pytest
import torch

from diffsparse import SparsityError
from diffsparse.graphs import draw_heat_map
from diffsparse.graphs.layout import row_order

ROAD_MAP = torch.tensor([[0, 0, 1], [0, 0, 1], [0, 0, 0]])
ADJACENCY = torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.25, 0.0, 0.75]], requires_grad=True)


def pixels(axes) -> np.ma.MaskedArray:
    return np.ma.asarray(axes.get_images()[0].get_array())


def test_matrix_alone_is_drawn_as_it_is_and_zeros_stay_white() -> None:
    axes = draw_heat_map(ADJACENCY, names=["a", "b", "c"]).axes[0]
    assert np.allclose(pixels(axes).filled(0), ADJACENCY.detach())
    assert pixels(axes).mask.tolist() == (ADJACENCY == 0).tolist()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    assert axes.get_title() == "learned: 5 non-zeros"


def test_both_matrices_have_the_same_order_and_the_map_its_diagonal() -> None:
    left, right = draw_heat_map(ADJACENCY, ROAD_MAP, names=["a", "b", "c"]).axes[:2]
    order = row_order(ROAD_MAP)
    assert order != [0, 1, 2]
    assert np.allclose(pixels(left).filled(0), ADJACENCY.detach()[order][:, order])
    near = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 1]])
    assert np.array_equal(pixels(right), near[order][:, order])
    for axes in (left, right):
        assert [label.get_text() for label in axes.get_xticklabels()] == ["abc"[node] for node in order]
    assert left.get_title() == "learned: 5 non-zeros, 100.0% on the map"
    assert right.get_title() == "given map: 7 non-zeros with the diagonal"


def test_many_nodes_have_no_names() -> None:
    assert list(draw_heat_map(torch.eye(51)).axes[0].get_xticks()) == []
    assert len(draw_heat_map(torch.eye(50)).axes[0].get_xticks()) == 50


def test_an_empty_graph_can_be_drawn() -> None:
    assert pixels(draw_heat_map(torch.zeros(3, 3), ROAD_MAP).axes[0]).mask.all()


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(SparsityError, match="has 3 nodes and the adjacency has 2"):
        draw_heat_map(torch.eye(2), ROAD_MAP)
    with pytest.raises(SparsityError, match="each of the 3 nodes, got 1"):
        draw_heat_map(ADJACENCY, names=["a"])
