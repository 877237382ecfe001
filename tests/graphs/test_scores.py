"""Scores against hand-worked graphs, a breadth-first search and a loop over the paper's formula."""

from collections import deque

import pytest
import torch
from torch import Tensor

from diffsparse import SparsityError
from diffsparse.graphs import hop_counts, learned_relationship, nonzeros, within_hops
from diffsparse.graphs.adjacency import node_names, require_adjacency, require_map

# 0 - 1 - 2   3 - 4   5
SIX = torch.zeros(6, 6, dtype=torch.bool)
for one, other in ((0, 1), (1, 2), (3, 4)):
    SIX[one, other] = SIX[other, one] = True


def random_map(nodes: int, links: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    given = torch.zeros(nodes, nodes)
    given[torch.randint(nodes, (links,), generator=generator), torch.randint(nodes, (links,), generator=generator)] = 1
    return given


def breadth_first(road_map: Tensor) -> list[list[float]]:
    nodes = len(road_map)
    neighbours = [[j for j in range(nodes) if road_map[i, j] or road_map[j, i]] for i in range(nodes)]
    distances = [[float("inf")] * nodes for _ in range(nodes)]
    for start in range(nodes):
        distances[start][start] = 0
        queue = deque([start])
        while queue:
            here = queue.popleft()
            for there in neighbours[here]:
                if distances[start][there] == float("inf"):
                    distances[start][there] = distances[start][here] + 1
                    queue.append(there)
    return distances


def relationship_by_loop(adjacency: Tensor, near: list[list[bool]]) -> float:
    nodes = len(adjacency)
    total = 0.0
    for i in range(nodes):
        for j in range(nodes):
            if near[i][j] and adjacency[i, j] > 0:
                total += adjacency[i, j].item() / adjacency[i].sum().item()
                total += adjacency[i, j].item() / adjacency[:, j].sum().item()
    return total / (2 * nodes)


@pytest.mark.parametrize(("nodes", "links", "seed"), [(1, 0, 0), (12, 9, 1), (12, 20, 2), (40, 45, 3)])
def test_hop_counts_are_those_of_a_breadth_first_search(nodes: int, links: int, seed: int) -> None:
    road_map = random_map(nodes, links, seed)
    assert hop_counts(road_map).tolist() == breadth_first(road_map)


def test_a_chain_has_its_whole_length() -> None:
    chain = torch.diag(torch.ones(49), 1)
    assert hop_counts(chain)[0].tolist() == list(range(50))


def test_within_hops_has_the_diagonal_and_grows_with_hops() -> None:
    assert torch.equal(within_hops(SIX, 0), torch.eye(6, dtype=torch.bool))
    assert torch.equal(within_hops(SIX, 1), SIX | torch.eye(6, dtype=torch.bool))
    two = within_hops(SIX, 2)
    assert two[0, 2]
    assert int(two.sum()) == int(within_hops(SIX, 1).sum()) + 2
    assert torch.equal(two, within_hops(SIX, 50))


def test_nonzeros_counts_the_diagonal() -> None:
    assert nonzeros(torch.tensor([[0.1, 0.0], [1e-30, 2.0]])) == 3


def test_hand_worked_relationship() -> None:
    road_map = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    adjacency = torch.tensor([[1.0, 2.0, 1.0], [0.0, 4.0, 0.0], [3.0, 0.0, 1.0]])
    # rows on the map: 3/4, 4/4, 1/4; columns: 1/4, 6/6, 1/2
    assert learned_relationship(adjacency, road_map) == pytest.approx((0.75 + 1 + 0.25 + 0.25 + 1 + 0.5) / 6)


@pytest.mark.parametrize("hops", [0, 1, 2])
def test_relationship_is_the_papers_formula(hops: int) -> None:
    road_map = random_map(15, 20, seed=5)
    adjacency = torch.rand(15, 15, generator=torch.Generator().manual_seed(6)).sub(0.6).clamp(min=0)
    near = [[distance <= hops for distance in row] for row in breadth_first(road_map)]
    assert learned_relationship(adjacency, road_map, hops) == pytest.approx(relationship_by_loop(adjacency, near))


def test_uniform_graph_at_the_size_of_the_paper_scores_the_share_of_the_map() -> None:
    """878 non-zeros of 170 x 170 are the diagonal and 354 links."""
    links = torch.ones(170, 170).triu(1).nonzero()[torch.randperm(170 * 169 // 2)[:354]]
    road_map = torch.zeros(170, 170, dtype=torch.bool)
    road_map[links[:, 0], links[:, 1]] = True
    assert int(within_hops(road_map).sum()) == 878
    assert learned_relationship(torch.full((170, 170), 1 / 170), road_map) == pytest.approx(878 / 28_900)


def test_a_graph_on_the_map_scores_one_at_any_scale() -> None:
    on_map = within_hops(SIX).float() * torch.rand(6, 1).add(0.1)
    for scale in (1e-20, 1.0, 1e20):
        assert learned_relationship(scale * on_map, SIX) == pytest.approx(1)


def test_empty_rows_and_columns_count_as_nothing() -> None:
    adjacency = torch.eye(6)
    adjacency[2, 2] = 0
    assert learned_relationship(adjacency, SIX) == pytest.approx(5 / 6)
    assert learned_relationship(torch.zeros(6, 6), SIX) == 0


def test_half_precision_is_scored_in_full() -> None:
    adjacency = torch.full((300, 300), 0.001, dtype=torch.float16)
    assert learned_relationship(adjacency, torch.eye(300)) == pytest.approx(1 / 300)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(SparsityError, match="has 6 nodes and the adjacency has 2"):
        learned_relationship(torch.eye(2), SIX)
    with pytest.raises(SparsityError, match="hops must be a whole number of at least 0, got -1"):
        within_hops(SIX, -1)
    with pytest.raises(SparsityError, match="got -1 in row 0"):
        nonzeros(-torch.eye(2))


def test_adjacency_comes_back_without_history() -> None:
    given = torch.ones(2, 2, requires_grad=True)
    weights = require_adjacency(given * 2)
    assert weights.tolist() == [[2, 2], [2, 2]]
    assert not weights.requires_grad


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([[1.0]], "got list"),
        (torch.ones(2, 2, dtype=torch.int64), r"got torch\.int64"),
        (torch.ones(2, 3), r"got shape \(2, 3\)"),
        (torch.ones(4), r"got shape \(4,\)"),
        (torch.ones(0, 0), r"got shape \(0, 0\)"),
        (torch.tensor([[1.0, 0.0], [-0.5, 1.0]]), "got -0.5 in row 1, column 0"),
        (torch.tensor([[1.0, torch.nan], [0.0, 1.0]]), "got nan in row 0, column 1"),
        (torch.tensor([[1.0, 0.0], [0.0, torch.inf]]), "got inf in row 1, column 1"),
    ],
)
def test_wrong_adjacencies_are_named(value: torch.Tensor, message: str) -> None:
    with pytest.raises(SparsityError, match=message):
        require_adjacency(value)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_a_map_is_true_where_it_is_not_zero(dtype: torch.dtype) -> None:
    assert require_map(torch.tensor([[0, 1], [0, 0]]).to(dtype), 2).tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([[0]], "got list"),
        (torch.ones(2, 3), r"got shape \(2, 3\)"),
        (torch.ones(2, 2), "has 2 nodes and the adjacency has 3"),
        (torch.full((3, 3), torch.nan), "NaN in row 0, column 0"),
    ],
)
def test_wrong_maps_are_named(value: torch.Tensor, message: str) -> None:
    with pytest.raises(SparsityError, match=message):
        require_map(value, 3)


def test_names_become_text_and_have_a_default() -> None:
    assert node_names((773869, "x"), 2) == ["773869", "x"]
    assert node_names(None, 2) == ["0", "1"]


@pytest.mark.parametrize(("names", "message"), [(["a"], "each of the 2 nodes, got 1"), ([1, "1"], "got '1' twice")])
def test_wrong_names_are_named(names: list[object], message: str) -> None:
    with pytest.raises(SparsityError, match=message):
        node_names(names, 2)
