import csv
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import diffsparse as ds
from diffsparse.traffic.data import TrafficDataSet, traffic_data
from diffsparse.traffic.feature import graph_figures, learned_graph, write_graph
from diffsparse.traffic.reading import Speeds
from diffsparse.training import Distillation, Optimisation, Recipe, Sparsifying, train
from tests.training.examples import RUN_MODULE, Net, small_data

PICTURES = {"graph.svg", "graph.png", "roads.svg", "roads.png"}
# node b reads a and itself, c reads a, of which only a - b is a link of the map a - b - c
GRAPH = torch.tensor([[0.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])


def three_roads(*, one_way: bool = False, positions: torch.Tensor | None = None) -> TrafficDataSet:
    """The map a - b - c, perhaps given in one direction only, and speeds that wander."""
    generator = torch.Generator().manual_seed(0)
    values = 50 + 5 * torch.randn(120, 3, generator=generator, dtype=torch.double)
    links = torch.tensor([[0, 1, 0], [0, 0, 1], [0, 0, 0]]).bool()
    road_map = links if one_way else links | links.mT
    return traffic_data("three", Speeds(values=values, names=("a", "b", "c")), road_map, positions=positions)


def draw(tmp_path: Path, graph: torch.Tensor, data: Any) -> tuple[set[str], list[str]]:
    """Names of the pictures that were written, and what was said."""
    said: list[str] = []
    write_graph(graph, data, tmp_path, said.append)
    return {path.name for path in tmp_path.iterdir()} - {"graph.csv"}, said


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Figures by the names of their files, instead of the files."""
    figures: dict[str, Any] = {}
    monkeypatch.setattr(
        "diffsparse.plot.picture.save_picture", lambda path, figure: figures.update({path.name: figure})
    )
    return figures


def test_the_graph_is_that_of_the_model() -> None:
    adjacency = ds.SparseAdjacency(3)
    found = learned_graph(torch.nn.Sequential(torch.nn.ReLU(), adjacency))
    assert found is not None
    assert torch.equal(found, adjacency())
    assert not found.requires_grad
    assert learned_graph(Net()) is None


@pytest.mark.parametrize("one_way", [False, True])
def test_figures_count_entries_and_links_in_each_direction(one_way: bool) -> None:
    figures = graph_figures(GRAPH, three_roads(one_way=one_way))
    # rows b and c, columns a and b hold weights: of these 1 + 0 and 1/3 + 1 lie on the map
    assert figures.pop("lr1") == pytest.approx((1 + 0 + 1 / 3 + 1) / 6)
    assert figures.pop("lr2") == pytest.approx(4 / 6)
    assert figures == {"nonzeros": 3, "entries": 9, "map_entries": 7, "links": 4, "links_found": 1}
    assert graph_figures(GRAPH, small_data()) == {"nonzeros": 3, "entries": 9}


def test_the_edge_list_has_the_names_of_the_nodes(tmp_path: Path) -> None:
    draw(tmp_path, GRAPH, three_roads())
    with (tmp_path / "graph.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows == [["source", "target", "weight"], ["a", "b", "0.5"], ["b", "b", "0.5"], ["a", "c", "1.0"]]


def test_four_pictures(tmp_path: Path) -> None:
    names, said = draw(tmp_path, GRAPH, three_roads())
    assert (names, said) == (PICTURES, [])
    assert (tmp_path / "roads.png").read_bytes()[1:4] == b"PNG"
    assert "<svg" in (tmp_path / "graph.svg").read_text()


def test_what_is_known_of_the_map_is_shown(tmp_path: Path, drawn: dict[str, Any]) -> None:
    places = torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.0, 1.0]])
    draw(tmp_path, GRAPH, three_roads(positions=places))
    assert drawn.keys() == PICTURES
    learned, given, _ = drawn["graph.png"].axes
    assert "3 non-zeros" in learned.get_title()
    assert "7 non-zeros" in given.get_title()
    roads = drawn["roads.png"]
    assert [text.get_text() for text in roads.axes[0].texts] == ["a", "b", "c"]
    assert torch.equal(torch.tensor(roads.axes[0].collections[-1].get_offsets().tolist()), places)
    assert "learned, on the map: 1" in [text.get_text() for text in roads.legends[0].get_texts()]


def test_without_a_map_the_graph_is_drawn_alone(tmp_path: Path, drawn: dict[str, Any]) -> None:
    draw(tmp_path, GRAPH, small_data())
    assert len(drawn["graph.svg"].axes) == 2  # the matrix and its scale
    assert [text.get_text() for text in drawn["roads.svg"].legends[0].get_texts()] == ["learned: 2"]


def test_a_blot_of_edges_is_not_drawn(tmp_path: Path, drawn: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffsparse.traffic.feature.MOST_DRAWN", 2)
    _, said = draw(tmp_path, GRAPH, three_roads())
    assert said == ["no roads.svg: 3 edges are too many to tell apart"]
    assert drawn.keys() == {"graph.svg", "graph.png"}


def test_without_matplotlib_there_is_only_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    names, (said,) = draw(tmp_path, GRAPH, three_roads())
    assert names == set()
    assert said.startswith("no pictures of the graph: ")
    assert "pip install matplotlib" in said


@pytest.mark.parametrize(("method", "nonzeros"), [("given-map", 7), ("plain", 9), ("ds", 9)])
def test_a_run_leaves_graph_and_pictures(
    method: Any, nonzeros: int, tmp_path: Path, drawn: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = three_roads(one_way=True)
    monkeypatch.setattr(RUN_MODULE, "open_data", lambda *_, **__: data)
    recipe = Recipe(
        model="traffic-gcn",
        arguments='{"width": 4, "blocks": 1}',
        epochs=1,
        batch_size=16,
        optimisation=Optimisation(optimizer="adam", learning_rate=1e-3),
        sparsifying=Sparsifying(method=method, norm="lp" if method == "ds" else "l1", strength=1e-6 * (method == "ds")),
    )
    for wrong, message in (
        ({"arguments": '{"nodes": 3}'}, "the arguments of traffic-gcn are width and blocks, got nodes"),
        ({"sparsifying": Sparsifying()}, "the norm of traffic-gcn is lp"),
        ({"distillation": Distillation(teacher="train")}, "a teacher and label_smoothing are about classes"),
    ):
        with pytest.raises(ds.SparsityError, match=message):
            train(replace(recipe, **wrong), tmp_path / "run")
    result = train(recipe, tmp_path / "run")
    assert (result["graph"]["nonzeros"], result["graph"]["entries"]) == (nonzeros, 9)
    assert result["graph"]["links_found"] == 4
    assert len((tmp_path / "run" / "graph.csv").read_text().splitlines()) == 1 + nonzeros
    assert drawn.keys() == PICTURES
