"""Where to put the nodes of a graph: in the plane, or in a row."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsparse.graphs.scores import hop_counts, require_map

Floats = npt.NDArray[np.float64]

ROUNDS = 200
SETTLED = 1e-4


def plane_layout(road_map: Tensor) -> Tensor:
    r"""Positions (nodes, 2), float32, whose distances are close to the hop counts on the map.

    Minimises the stress :math:`\sum_{ij} (\|x_i - x_j\| - d_{ij})^2 / d_{ij}^2` over the hop counts d by majorisation,
    starting from the classical scaling of d. The same map always gets the same positions. Parts of the map that are not
    connected are drawn a little apart.

    Example:
        >>> ends = plane_layout(torch.tensor([[0, 1, 0], [0, 0, 1], [0, 0, 0]]))[[0, 2]]
        >>> round((ends[0] - ends[1]).norm().item(), 3)
        2.0
    """
    wanted = _distances(require_map(road_map))
    if len(wanted) == 1:
        return torch.zeros(1, 2)
    apart = wanted + np.eye(len(wanted))
    pull = (1 - np.eye(len(wanted))) / apart**2
    inverse = np.linalg.pinv(_laplacian(pull))
    places = _classical_scaling(wanted)
    for _ in range(ROUNDS):
        lengths: Floats = np.linalg.norm(places[:, None] - places[None], axis=-1)
        moved = inverse @ (_laplacian(pull * wanted / np.maximum(lengths, 1e-9)) @ places)
        change = np.abs(moved - places).max()
        places = moved
        if change < SETTLED:
            break
    return torch.from_numpy(places).float()


def row_order(road_map: Tensor) -> list[int]:
    """All nodes in a row, linked nodes close together: ordered along the longest axis of the classical scaling.

    Example:
        >>> row_order(torch.tensor([[0, 0, 1], [0, 0, 1], [1, 1, 0]])) in ([0, 2, 1], [1, 2, 0])
        True
    """
    along: Floats = _classical_scaling(_distances(require_map(road_map)))[:, 0]
    return [int(node) for node in np.argsort(along, kind="stable")]


def _distances(linked: Tensor) -> Floats:
    hops: Floats = hop_counts(linked).cpu().double().numpy()
    near = hops[np.isfinite(hops)]
    # half the width of the widest part plus a gap: visibly apart, but on the same page
    return np.where(np.isfinite(hops), hops, float(near.max()) / 2 + 2)


def _classical_scaling(distances: Floats) -> Floats:
    """Coordinates (nodes, 2) whose inner products fit the squared distances best, the longest axis first."""
    nodes = len(distances)
    centre = np.eye(nodes) - 1 / nodes
    values, vectors = np.linalg.eigh(-centre @ distances**2 @ centre / 2)
    longest = np.argsort(values)[::-1][:2]
    # an eigenvector may come out with either sign
    signs = np.where(vectors[np.abs(vectors[:, longest]).argmax(0), longest] < 0, -1.0, 1.0)
    places: Floats = vectors[:, longest] * signs * np.sqrt(np.maximum(values[longest], 0))
    return places


def _laplacian(weights: Floats) -> Floats:
    return np.diag(weights.sum(1)) - weights
