"""A learned graph in the formats of other libraries.

In all of them, `adjacency[i, j]` is the weight with which node i reads node j, so it is an edge from j to i. Only
non-zero edges are exported, including self-loops.
"""

import csv
import io
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffsparse.errors import SparsityError
from diffsparse.files import write_text
from diffsparse.graphs.scores import node_names, require_adjacency


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
    """Write a csv file with the columns source, target and weight, one row per edge, weights in full precision.

    The file appears, or replaces the old one, when it is complete. Nodes without edges are not in it.
    """
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

    Example:
        >>> to_edge_index(torch.tensor([[0.0, 0.25], [0.0, 1.0]]))
        (tensor([[1, 1],
                [0, 1]]), tensor([0.2500, 1.0000]))
    """
    weights = require_adjacency(adjacency)
    targets, sources = weights.nonzero(as_tuple=True)
    return torch.stack([sources, targets]), weights[targets, sources]


def to_networkx(adjacency: Tensor, names: Sequence[object] | None = None) -> Any:
    """A `networkx.DiGraph` with every node, in order, and the attribute `weight` on each edge; needs networkx."""
    try:
        import networkx
    except ImportError:
        raise SparsityError("a networkx graph needs networkx; install it with: pip install networkx") from None
    graph = networkx.DiGraph()
    graph.add_nodes_from(node_names(names, len(require_adjacency(adjacency))))
    graph.add_weighted_edges_from(edges(adjacency, names))
    return graph


def to_scipy(adjacency: Tensor) -> Any:
    """A `scipy.sparse.csr_array` equal to `adjacency`: row i holds what node i reads.

    Needs scipy. Graph routines that take entry [i, j] as an edge from i to j, like scipy's, need the transpose.
    """
    try:
        from scipy import sparse
    except ImportError:
        raise SparsityError("a sparse array needs scipy; install it with: pip install scipy") from None
    (sources, targets), weights = to_edge_index(adjacency)
    # numpy has no bfloat16 and scipy no float16
    values = weights.to(torch.promote_types(weights.dtype, torch.float32)).cpu().numpy()
    return sparse.csr_array((values, (targets.cpu().numpy(), sources.cpu().numpy())), shape=tuple(adjacency.shape))
