"""Mult-Adds and parameters of a learned graph, by two conventions."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from diffsparse.errors import SparsityError, require_number, require_whole
from diffsparse.wiring.graph import Live, WiringGraph, live_by_one_hop, live_recursively, wiring_graph

KERNEL = 9
"""Weights of a 3x3 filter."""


@dataclass(frozen=True, kw_only=True)
class WiringCost:
    """What the live part of a graph costs for one image; batch norm, ReLU and pooling are not counted."""

    mult_adds: int
    """Multiply-accumulates of stem, filters, edges and classifier."""
    params: int
    """Weights of stem, filters, edges and classifier, and the bias of the classifier; without batch norm."""
    batch_norm_params: int
    """Scale and shift of every live node, and of every live output node in front of the classifier."""
    edges: float
    """Edges that were counted."""
    nodes: int
    """Nodes with a filter that were counted."""
    constant_nodes: int
    """Nodes that send the same map for every image, though they are read; the recursive convention leaves them out."""


def wiring_cost(
    net: nn.Module | WiringGraph, size: int = 32, *, recursive: bool = False, edges: Sequence[float] | None = None
) -> WiringCost:
    """Cost of the live graph of a wired network.

    Args:
        net: the network with its edges as they are now, or its graph.
        size: height and width of the image.
        recursive: whether nodes and edges must lie on a path from the image to the classifier (`live_recursively`);
            otherwise a node is judged by its own edges only, as in Discovering Neural Wirings (`live_by_one_hop`). A
            node with outgoing edges and none that come in counts in full by one hop; recursively its constant map
            costs nothing, and neither do its edges.
        edges: number of edges to charge for each stage in place of those that are there. Discovering Neural Wirings
            charges `StageShape.edge_count`, whatever the edges are.

    Example:
        >>> from diffsparse.wiring.mobilenet import WiredMobileNet
        >>> from diffsparse.wiring import Proximal
        >>> wiring_cost(WiredMobileNet(edges=Proximal(strength=0.0))).mult_adds
        105074688
    """
    graph = net if isinstance(net, WiringGraph) else wiring_graph(net)
    live = live_recursively(graph) if recursive else live_by_one_hop(graph)
    charged = _edge_counts(live) if edges is None else _checked(edges, graph)
    size = -(-require_whole("size", size, low=1) // graph.stem_stride)
    stem, outputs = int(live.nodes[0][0].sum()), int(live.nodes[-1][-1].sum())
    stem_weights, fc_weights = graph.stem_weights * stem, graph.num_classes * outputs
    mult_adds: float = stem_weights * size**2 + fc_weights
    senders = 0
    for stage, groups, count in zip(graph.stages, live.nodes, charged, strict=True):
        size = -(-size // stage.stride)
        here = sum(int(mask.sum()) for mask in groups[:-1])
        mult_adds += (KERNEL * here + count) * size**2
        senders += here
    return WiringCost(
        mult_adds=round(mult_adds),
        params=round(stem_weights + KERNEL * senders + sum(charged) + fc_weights + graph.num_classes),
        batch_norm_params=2 * (senders + outputs),
        edges=sum(charged),
        nodes=senders,
        constant_nodes=sum(int(mask.sum()) for groups in live.constant for mask in groups),
    )


def _edge_counts(live: Live) -> list[float]:
    return [sum(int(matrix.sum()) for matrix in stage) for stage in live.edges]


def _checked(edges: Sequence[float], graph: WiringGraph) -> list[float]:
    if len(edges) != len(graph.stages):
        raise SparsityError(f"edges needs one number for each of the {len(graph.stages)} stages, got {len(edges)}")
    return [
        require_number(f"edges of stage {i}", count, low=0, high=stage.shape.usable_edges)
        for i, (count, stage) in enumerate(zip(edges, graph.stages, strict=True))
    ]
