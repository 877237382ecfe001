"""Every form of a graph, multiplied with a signal, does what the matrix does."""

import csv
import sys
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch
from torch import Tensor

from diffsparse import SparsityError
from diffsparse.graphs import Edge, edges, to_edge_index, to_networkx, to_scipy, write_edge_list

NAMES = ("bridge", 'market "old"', "ring, north", "quay")


@pytest.fixture
def adjacency() -> Tensor:
    """Not symmetric, with a self-loop, and with a node (3) that has no edge at all."""
    weights = torch.tensor([[0.5, 0.1, 0.0, 0.0], [0.0, 0.0, 1 / 3, 0.0], [0.7, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    return weights.requires_grad_()


def test_edges_go_from_what_is_read_to_the_reader(adjacency: Tensor) -> None:
    assert edges(adjacency, NAMES) == [
        Edge("bridge", "bridge", 0.5),
        Edge(NAMES[1], "bridge", adjacency[0, 1].item()),
        Edge(NAMES[2], NAMES[1], adjacency[1, 2].item()),
        Edge("bridge", NAMES[2], adjacency[2, 0].item()),
    ]


def test_edge_list_is_read_back_bit_for_bit(adjacency: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "graph.csv"
    write_edge_list(path, adjacency, NAMES)
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["source", "target", "weight"]
    again = torch.zeros(4, 4)
    for row in rows:
        again[NAMES.index(row["target"]), NAMES.index(row["source"])] = float(row["weight"])
    assert torch.equal(again, adjacency.detach())


def test_edge_index_sums_messages_like_the_matrix(adjacency: Tensor) -> None:
    edge_index, edge_weight = to_edge_index(adjacency)
    assert edge_index.dtype == torch.int64
    assert not edge_weight.requires_grad
    signal = torch.randn(4, 3)
    source, target = edge_index
    received = torch.zeros(4, 3).index_add_(0, target, edge_weight.unsqueeze(1) * signal[source])
    assert torch.allclose(received, adjacency.detach() @ signal)


def test_networkx_keeps_every_node_and_the_direction(adjacency: Tensor) -> None:
    graph = to_networkx(adjacency, NAMES)
    assert list(graph.nodes) == list(NAMES)
    assert list(graph.successors("bridge")) == ["bridge", NAMES[2]]
    source_to_target = networkx.to_numpy_array(graph, dtype=np.float32)
    assert np.array_equal(source_to_target.T, adjacency.detach().numpy())


def test_scipy_is_the_same_matrix(adjacency: Tensor) -> None:
    matrix = to_scipy(adjacency)
    assert matrix.nnz == 4
    assert np.array_equal(matrix.toarray(), adjacency.detach().numpy())
    signal = np.arange(4.0)
    assert np.allclose(matrix @ signal, adjacency.detach().double().numpy() @ signal)


def test_bfloat16_graphs_can_be_handed_over() -> None:
    adjacency = torch.tensor([[0.5, 0.0], [0.25, 0.0]], dtype=torch.bfloat16)
    assert to_scipy(adjacency).toarray().tolist() == [[0.5, 0], [0.25, 0]]
    assert to_edge_index(adjacency)[1].dtype == torch.bfloat16
    assert edges(adjacency) == [Edge("0", "0", 0.5), Edge("0", "1", 0.25)]


def test_an_empty_graph_has_no_edges(tmp_path: Path) -> None:
    nothing = torch.zeros(3, 3)
    assert edges(nothing) == []
    assert to_edge_index(nothing)[0].shape == (2, 0)
    assert to_networkx(nothing).number_of_nodes() == 3
    assert to_scipy(nothing).shape == (3, 3)
    write_edge_list(tmp_path / "empty.csv", nothing)
    assert (tmp_path / "empty.csv").read_text() == "source,target,weight\n"


@pytest.mark.parametrize(("module", "convert"), [("networkx", to_networkx), ("scipy", to_scipy)])
def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, module: str, convert) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SparsityError, match=f"pip install {module}"):
        convert(torch.eye(2))


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(SparsityError, match="each of the 2 nodes, got 1"):
        edges(torch.eye(2), ["bridge"])
    with pytest.raises(SparsityError, match="got 'bridge' twice"):
        to_networkx(torch.eye(2), ["bridge", "bridge"])
    with pytest.raises(SparsityError, match="there is no folder"):
        write_edge_list(tmp_path / "nowhere" / "graph.csv", torch.eye(2))
