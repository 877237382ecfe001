"""What is asked of the matrices that stand for graphs, and of the names of their nodes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from diffsparse.errors import SparsityError, require_floats


def require_adjacency(value: Tensor) -> Tensor:
    """`value` without its history; raises unless it is a square matrix of finite weights, none of them negative."""
    require_floats("adjacency", value)
    _require_square("adjacency", value)
    weights = value.detach()
    wrong = ~torch.isfinite(weights) | (weights < 0)
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        raise SparsityError(
            f"adjacency must have finite weights that are not negative, "
            f"got {weights[row, column].item():g} in row {row}, column {column}"
        )
    return weights


def require_map(value: Tensor, nodes: int | None = None) -> Tensor:
    """`value` as a bool matrix, True where it is not zero; raises unless it is square and of that many nodes."""
    if not isinstance(value, Tensor):
        raise SparsityError(f"road_map must be a tensor, got {type(value).__name__}")
    _require_square("road_map", value)
    if nodes is not None and len(value) != nodes:
        raise SparsityError(f"road_map has {len(value)} nodes and the adjacency has {nodes}")
    if value.is_floating_point() and bool(value.isnan().any()):
        row, column = value.isnan().nonzero()[0].tolist()
        raise SparsityError(f"road_map is NaN in row {row}, column {column}")
    return value.detach() != 0


def node_names(names: Sequence[object] | None, nodes: int) -> list[str]:
    """The names as text, or "0", "1", ...; raises unless there is one for each node and no two are alike."""
    if names is None:
        return [str(node) for node in range(nodes)]
    given = [str(name) for name in names]
    if len(given) != nodes:
        raise SparsityError(f"names must be one for each of the {nodes} nodes, got {len(given)}")
    if len(set(given)) != nodes:
        twice = next(name for name in given if given.count(name) > 1)
        raise SparsityError(f"names must differ from each other, got {twice!r} twice")
    return given


def _require_square(name: str, value: Tensor) -> None:
    if value.dim() != 2 or value.shape[0] != value.shape[1] or len(value) == 0:
        raise SparsityError(f"{name} must be a square matrix (nodes, nodes), got shape {tuple(value.shape)}")
