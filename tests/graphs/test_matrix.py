import pytest
import torch

from diffsparse import SparsityError
from diffsparse.graphs.matrix import node_names, require_adjacency, require_map


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
