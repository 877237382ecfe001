"""A learned graph as a matrix: checks, how much of it lies on a given map, and exports to other libraries.

`adjacency[i, j]` is the weight with which node i reads node j, so it is an edge from j to i. Only non-zero edges are
exported, including self-loops.
"""

import csv
import io
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffsparse.errors import SparsityError, import_extra, require_floats, require_whole
from diffsparse.files import write_text


def require_adjacency(value: Tensor) -> Tensor:
    """`value`, detached; raises unless it is a square matrix of finite, non-negative weights."""
    require_floats("adjacency", value)
    _require_square("adjacency", value)
    weights = value.detach()
    wrong = ~torch.isfinite(weights) | (weights < 0)
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        found = f"{weights[row, column].item():g} in row {row}, column {column}"
        raise SparsityError(f"adjacency must have finite, non-negative weights, got {found}")
    return weights


def require_map(value: Tensor, nodes: int | None = None) -> Tensor:
    """`value` as a bool matrix, True where it is not zero; raises unless it is square and has that many nodes."""
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
    """The names as text, by default "0", "1", ...; raises unless each node has a name of its own."""
    if names is None:
        return [str(node) for node in range(nodes)]
    given = [str(name) for name in names]
    if len(given) != nodes:
        raise SparsityError(f"names must be one for each of the {nodes} nodes, got {len(given)}")
    if len(set(given)) != nodes:
        twice = next(name for name in given if given.count(name) > 1)
        raise SparsityError(f"names must differ from each other, got {twice!r} twice")
    return given


def nonzeros(adjacency: Tensor) -> int:
    """The number of non-zero entries of the learned graph, including the diagonal."""
    return int(torch.count_nonzero(require_adjacency(adjacency)))


def hop_counts(road_map: Tensor) -> Tensor:
    """Distances (nodes, nodes) on the map, counted in links, float32; infinite if there is no path.

    A link counts in both directions, whatever its weight; the distance of a node to itself is 0.
    """
    linked = require_map(road_map)
    steps = (linked | linked.mT).float()
    reached = torch.eye(len(steps), dtype=torch.bool, device=steps.device)
    hops = torch.full_like(steps, torch.inf).masked_fill(reached, 0)
    for distance in range(1, len(steps)):
        fresh = (reached.float() @ steps > 0) & ~reached
        if not bool(fresh.any()):
            break
        hops[fresh] = distance
        reached |= fresh
    return hops


def within_hops(road_map: Tensor, hops: int = 1) -> Tensor:
    """The bool matrix :math:`M^k`: True where the distance is at most `hops`, so also on the diagonal."""
    return hop_counts(road_map) <= require_whole("hops", hops, low=0)


def learned_relationship(adjacency: Tensor, road_map: Tensor, hops: int = 1) -> float:
    r"""The score LR of a learned graph (section "Learning Sparse Affinity Matrix"), from 0 to 1.

    .. math:: \frac{1}{2N} \sum_{i,j} \left[(D_r^{-1} A + A D_c^{-1}) \odot M^k\right]_{ij}

    The mean over all rows and columns of A (N, N) of the share of their weight that lies within `hops` (k) links on the
    map, (N, N) and non-zero where two nodes are linked. An empty row or column counts as 0.

    Example:
        >>> road_map = torch.tensor([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
        >>> round(learned_relationship(torch.ones(3, 3), road_map), 4)
        0.7778
    """
    weights = require_adjacency(adjacency).double()
    near = within_hops(require_map(road_map, len(weights)), hops).to(weights.device)
    on_map = weights * near
    pairs = [(on_map.sum(dim), weights.sum(dim)) for dim in (0, 1)]
    return float(sum((part / torch.where(total > 0, total, 1.0)).sum() for part, total in pairs) / (2 * len(weights)))


def _require_square(name: str, value: Tensor) -> None:
    if value.dim() != 2 or value.shape[0] != value.shape[1] or len(value) == 0:
        raise SparsityError(f"{name} must be a square matrix (nodes, nodes), got shape {tuple(value.shape)}")


class Edge(NamedTuple):
    """One edge of a learned graph: `target` reads `source` with this weight."""

    source: str
    target: str
    weight: float


def edges(adjacency: Tensor, names: Sequence[object] | None = None) -> list[Edge]:
    """The edges, ordered by target and then by source; `names` has one per node, by default "0", "1", ...

    Example:
        >>> edges(torch.tensor([[0.0, 0.25], [0.0, 1.0]]), ["bridge", "market"])
        [Edge(source='market', target='bridge', weight=0.25), Edge(source='market', target='market', weight=1.0)]
    """
    labels = node_names(names, len(require_adjacency(adjacency)))
    (sources, targets), weights = (part.tolist() for part in to_edge_index(adjacency))
    return [Edge(labels[s], labels[t], w) for s, t, w in zip(sources, targets, weights, strict=True)]


def write_edge_list(path: str | os.PathLike[str], adjacency: Tensor, names: Sequence[object] | None = None) -> None:
    """Write a csv file of source, target and weight in full precision, one row per edge; it appears when complete."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Edge._fields)
    writer.writerows(edges(adjacency, names))
    write_text(path, text.getvalue())


def to_edge_index(adjacency: Tensor) -> tuple[Tensor, Tensor]:
    """The pair (edge_index, edge_weight) that PyTorch Geometric's layers take, on the device of `adjacency`.

    `edge_index` (2, edges) has the sources in its first row and the targets in its second, for the default
    "source_to_target" flow; `edge_weight` (edges,) has the dtype of `adjacency`. A layer that sums its messages then
    computes `adjacency @ x`.
    """
    weights = require_adjacency(adjacency)
    targets, sources = weights.nonzero(as_tuple=True)
    return torch.stack([sources, targets]), weights[targets, sources]


def to_networkx(adjacency: Tensor, names: Sequence[object] | None = None) -> Any:
    """A `networkx.DiGraph` with every node, in order, and the attribute `weight` on each edge; needs networkx."""
    graph = import_extra("networkx", "a networkx graph needs networkx", "networkx").DiGraph()
    graph.add_nodes_from(node_names(names, len(require_adjacency(adjacency))))
    graph.add_weighted_edges_from(edges(adjacency, names))
    return graph


def to_scipy(adjacency: Tensor) -> Any:
    """A `scipy.sparse.csr_array` equal to `adjacency`: row i holds what node i reads.

    Needs scipy. Graph routines that take entry [i, j] as an edge from i to j, like scipy's, need the transpose.
    """
    sparse = import_extra("scipy.sparse", "a sparse array needs scipy", "scipy")
    (sources, targets), weights = to_edge_index(adjacency)
    # numpy has no bfloat16 and scipy no float16
    values = weights.to(torch.promote_types(weights.dtype, torch.float32)).cpu().numpy()
    return sparse.csr_array((values, (targets.cpu().numpy(), sources.cpu().numpy())), shape=tuple(adjacency.shape))
