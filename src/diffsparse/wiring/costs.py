"""Mult-Adds and parameters of a learned graph under two conventions."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from diffsparse.errors import SparsityError, require_number, require_whole
from diffsparse.wiring.graph import WiringGraph, live_by_one_hop, live_recursively, wiring_graph

KERNEL = 9
"""Weights of a 3x3 filter."""


@dataclass(frozen=True, kw_only=True)
class WiringCost:
    """The cost of the live graph per image, without batch norm, ReLU and pooling."""

    mult_adds: int
    """Multiply-accumulates of stem, filters, edges and classifier."""
    params: int
    """Weights of stem, filters, edges and classifier, and the classifier's bias; without batch norm."""
    batch_norm_params: int
    """Scale and shift of every live node, and of every live output node in front of the classifier."""
    edges: float
    """Number of edges counted."""
    nodes: int
    """Number of nodes with a filter counted."""
    constant_nodes: int
    """Nodes that are read but send the same map for every image; the recursive convention leaves them out."""


def wiring_cost(
    net: nn.Module | WiringGraph, size: int = 32, *, recursive: bool = False, edges: Sequence[float] | None = None
) -> WiringCost:
    """The cost of the live graph of a wired network.

    Args:
        net: the network with its current edges, or its graph.
        size: height and width of the image.
        recursive: count only nodes and edges on a path from the image to the classifier (`live_recursively`). By
            default a node is judged by its own edges, as in Discovering Neural Wirings (`live_by_one_hop`). A node that
            has outgoing but no incoming edges then counts in full; recursively, it and its edges are free.
        edges: number of edges to charge per stage, instead of the live ones. Discovering Neural Wirings always charges
            `StageShape.edge_count`.

    Example:
        >>> from diffsparse.wiring import Plain
        >>> from diffsparse.wiring.mobilenet import WiredMobileNet
        >>> wiring_cost(WiredMobileNet(edges=Plain())).mult_adds
        105074688
    """
    graph = net if isinstance(net, WiringGraph) else wiring_graph(net)
    live = live_recursively(graph) if recursive else live_by_one_hop(graph)
    charged = live.edge_counts if edges is None else _checked(edges, graph)
    size = -(-require_whole("size", size, low=1) // graph.stem_stride)
    stem, outputs = int(live.nodes[0][0].sum()), int(live.nodes[-1][-1].sum())
    stem_weights, fc_weights = graph.stem_weights * stem, graph.num_classes * outputs
    mult_adds: float = stem_weights * size**2 + fc_weights
    for stage, senders, count in zip(graph.stages, live.sender_counts, charged, strict=True):
        size = -(-size // stage.stride)
        mult_adds += (KERNEL * senders + count) * size**2
    nodes = sum(live.sender_counts)
    return WiringCost(
        mult_adds=round(mult_adds),
        params=round(stem_weights + KERNEL * nodes + sum(charged) + fc_weights + graph.num_classes),
        batch_norm_params=2 * (nodes + outputs),
        edges=sum(charged),
        nodes=nodes,
        constant_nodes=sum(int(mask.sum()) for groups in live.constant for mask in groups),
    )


def _checked(edges: Sequence[float], graph: WiringGraph) -> list[float]:
    if len(edges) != len(graph.stages):
        raise SparsityError(f"edges must have one number for each of the {len(graph.stages)} stages, got {len(edges)}")
    return [
        require_number(f"edges of stage {i}", count, low=0, high=stage.shape.usable_edges)
        for i, (count, stage) in enumerate(zip(edges, graph.stages, strict=True))
    ]
