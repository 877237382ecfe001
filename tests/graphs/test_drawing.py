import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from diffsparse import SparsityError
from diffsparse.graphs import draw_graph, draw_heat_map, plane_layout
from diffsparse.graphs.drawing import MISSED, OFF_MAP, ON_MAP, row_order

# the map has 0 - 1 - 2 - 3; learned are 0 - 1 (both ways), 1 - 2 and 0 - 3
ROAD_MAP = torch.diag(torch.ones(3), 1)
ADJACENCY = torch.zeros(4, 4)
ADJACENCY[0, 1], ADJACENCY[1, 0], ADJACENCY[2, 1], ADJACENCY[3, 0] = 0.2, 1.0, 0.5, 0.01
ADJACENCY[0, 0] = 3.0
PLACES = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])


def drawn(figure) -> dict[str, list[tuple[tuple[float, ...], float]]]:
    """By colour: the ends of each line in one tuple, and its width."""
    found = {}
    for lines in figure.axes[0].collections[:-1]:
        ends = [tuple(segment.flatten().tolist()) for segment in lines.get_segments()]
        widths = list(lines.get_linewidths())
        colour = to_hex(lines.get_colors()[0]) if ends else ""
        found[colour] = list(zip(ends, widths, strict=True))
    return found


def test_live_edges_are_coloured_by_the_map_and_missed_links_shown() -> None:
    lines = drawn(draw_graph(ADJACENCY, ROAD_MAP, positions=PLACES))
    assert [ends for ends, _ in lines[ON_MAP.colour]] == [(0, 0, 1, 0), (1, 0, 1, 1)]
    assert [ends for ends, _ in lines[OFF_MAP.colour]] == [(0, 0, 0, 1)]
    assert [ends for ends, _ in lines[MISSED.colour]] == [(1, 1, 0, 1)]


def test_stronger_edges_are_wider_whatever_their_direction() -> None:
    lines = drawn(draw_graph(ADJACENCY, ROAD_MAP, positions=PLACES))
    (_, strongest), (_, weaker) = lines[ON_MAP.colour]
    ((_, weakest),) = lines[OFF_MAP.colour]
    assert strongest > weaker > weakest > 0


def test_legend_counts_the_lines() -> None:
    figure = draw_graph(ADJACENCY, ROAD_MAP, positions=PLACES)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["learned, on the map: 2", "learned, off the map: 1", "on the map, not learned: 1"]


def test_without_a_map_all_edges_are_alike() -> None:
    figure = draw_graph(ADJACENCY.requires_grad_(False), positions=PLACES)
    assert [len(lines) for lines in drawn(figure).values()] == [3]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["learned: 3"]


def test_nodes_lie_where_the_layout_of_the_map_or_the_graph_says() -> None:
    for figure, expected in (
        (draw_graph(ADJACENCY, ROAD_MAP), plane_layout(ROAD_MAP)),
        (draw_graph(ADJACENCY), plane_layout(ADJACENCY)),
        (draw_graph(ADJACENCY, positions=PLACES), PLACES),
    ):
        offsets = figure.axes[0].collections[-1].get_offsets()
        assert torch.allclose(torch.tensor(offsets.tolist()), expected)


def test_few_nodes_have_names_and_many_have_none() -> None:
    texts = draw_graph(ADJACENCY, names=["a", "b", "c", "d"], positions=PLACES).axes[0].texts
    assert [text.get_text() for text in texts] == ["a", "b", "c", "d"]
    assert len(draw_graph(torch.eye(61), positions=torch.rand(61, 2)).axes[0].texts) == 0


@pytest.mark.parametrize("nodes", [1, 2])
def test_graphs_without_edges_can_be_drawn(nodes: int) -> None:
    draw_graph(torch.zeros(nodes, nodes), torch.zeros(nodes, nodes)).draw_without_rendering()


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(SparsityError, match=r"positions must have shape \(4, 2\), got \(4, 3\)"):
        draw_graph(ADJACENCY, positions=torch.rand(4, 3))
    with pytest.raises(SparsityError, match=r"positions must have shape \(4, 2\), got list"):
        draw_graph(ADJACENCY, positions=[[0, 1]] * 4)
    with pytest.raises(SparsityError, match="has 4 nodes and the adjacency has 2"):
        draw_graph(torch.eye(2), ROAD_MAP)


SMALL_MAP = torch.tensor([[0, 0, 1], [0, 0, 1], [0, 0, 0]])
SMALL_GRAPH = torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.25, 0.0, 0.75]], requires_grad=True)


def pixels(axes) -> np.ma.MaskedArray:
    return np.ma.asarray(axes.get_images()[0].get_array())


def test_matrix_alone_is_drawn_as_it_is_and_zeros_stay_white() -> None:
    axes = draw_heat_map(SMALL_GRAPH, names=["a", "b", "c"]).axes[0]
    assert np.allclose(pixels(axes).filled(0), SMALL_GRAPH.detach())
    assert pixels(axes).mask.tolist() == (SMALL_GRAPH == 0).tolist()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    assert axes.get_title() == "learned: 5 non-zeros"


def test_both_matrices_have_the_same_order_and_the_map_its_diagonal() -> None:
    left, right = draw_heat_map(SMALL_GRAPH, SMALL_MAP, names=["a", "b", "c"]).axes[:2]
    order = row_order(SMALL_MAP)
    assert order != [0, 1, 2]
    assert np.allclose(pixels(left).filled(0), SMALL_GRAPH.detach()[order][:, order])
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
    assert pixels(draw_heat_map(torch.zeros(3, 3), SMALL_MAP).axes[0]).mask.all()


def test_wrong_arguments_of_a_heat_map_are_named() -> None:
    with pytest.raises(SparsityError, match="has 3 nodes and the adjacency has 2"):
        draw_heat_map(torch.eye(2), SMALL_MAP)
    with pytest.raises(SparsityError, match="each of the 3 nodes, got 1"):
        draw_heat_map(SMALL_GRAPH, names=["a"])
