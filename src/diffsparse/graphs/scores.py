"""How much of a learned graph lies on a given map."""

import torch
from torch import Tensor

from diffsparse.errors import require_whole
from diffsparse.graphs.matrix import require_adjacency, require_map


def nonzeros(adjacency: Tensor) -> int:
    """Entries of the learned graph that are not zero, the diagonal included.

    Example:
        >>> nonzeros(torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
        3
    """
    return int(torch.count_nonzero(require_adjacency(adjacency)))


def hop_counts(road_map: Tensor) -> Tensor:
    """Geodesic distances (nodes, nodes) on the map in links, float32, infinite where there is no way.

    A link counts in both directions, whatever its weight; the distance of a node to itself is 0.

    Example:
        >>> hop_counts(torch.tensor([[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]))
        tensor([[0., 1., 2., inf],
                [1., 0., 1., inf],
                [2., 1., 0., inf],
                [inf, inf, inf, 0.]])
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
    r"""The bool matrix :math:`M^k`: True where the geodesic distance is at most `hops`, so on the diagonal too.

    Example:
        >>> within_hops(torch.tensor([[0, 1, 0], [0, 0, 1], [0, 0, 0]])).int()
        tensor([[1, 1, 0],
                [1, 1, 1],
                [0, 1, 1]], dtype=torch.int32)
    """
    return hop_counts(road_map) <= require_whole("hops", hops, low=0)


def learned_relationship(adjacency: Tensor, road_map: Tensor, hops: int = 1) -> float:
    r"""The score LR of a learned graph (section "Learning Sparse Affinity Matrix"), from 0 to 1.

    .. math:: \frac{1}{2N} \sum_{i,j} \left[(D_r^{-1} A + A D_c^{-1}) \odot M^k\right]_{ij}

    The share of the weight of each row, and of each column, that lies within `hops` links on the map, averaged over
    all rows and columns.

    Args:
        adjacency: the learned graph A, not negative, (N, N).
        road_map: the given graph, (N, N), not zero where two nodes are linked; its diagonal does not matter.
        hops: the k of :math:`M^k`.

    Edges: an empty row or column has nothing on the map and counts as 0.

    Example:
        >>> road_map = torch.tensor([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
        >>> round(learned_relationship(torch.ones(3, 3), road_map), 4)
        0.7778
    """
    weights = require_adjacency(adjacency).double()
    near = within_hops(require_map(road_map, len(weights)), hops).to(weights.device)
    on_map = weights * near
    shares = [_shares(on_map.sum(dim), weights.sum(dim)) for dim in (0, 1)]
    return float(sum(share.sum() for share in shares) / (2 * len(weights)))


def _shares(parts: Tensor, totals: Tensor) -> Tensor:
    return parts / torch.where(totals > 0, totals, 1.0)
