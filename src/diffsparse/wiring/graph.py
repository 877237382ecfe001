"""The learned graph as plain data: which of its nodes and edges are alive, and what they cost."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_module, require_number, require_whole
from diffsparse.wiring.rules import StageShape
from diffsparse.wiring.stage import WiredStage, wired_stages

# Bool tensors: one vector per group of nodes, input nodes first, or one matrix per target group.
Masks = tuple[Tensor, ...]
# Weights of a 3x3 filter.
KERNEL = 9
CHAIN = "a convolution 'stem', a sequence 'stages' of WiredStages and a linear 'classifier'"


@dataclass(frozen=True, kw_only=True, eq=False)
class StageGraph:
    """The edges that exist in one stage, one matrix (outputs, fan-in) per target group."""

    shape: StageShape
    stride: int
    """Stride of the input nodes' filters."""
    edges: Masks


@dataclass(frozen=True, kw_only=True, eq=False)
class WiringGraph:
    """A chain of wired stages between a stem and a classifier: output nodes of a stage are input nodes of the next."""

    stages: tuple[StageGraph, ...]
    stem_stride: int
    stem_weights: int
    """Number of weights per output channel of the first convolution."""
    num_classes: int

    @property
    def edge_count(self) -> int:
        return sum(int(matrix.sum()) for stage in self.stages for matrix in stage.edges)

    @property
    def usable_edges(self) -> int:
        return sum(stage.shape.usable_edges for stage in self.stages)


@torch.no_grad()
def wiring_graph(net: nn.Module | WiringGraph) -> WiringGraph:
    """The graph of a network with a convolution `stem`, a sequence `stages` of wired ones and a linear `classifier`."""
    if isinstance(net, WiringGraph):
        return net
    name = type(require_module("net", net)).__name__
    stem, stages, classifier = (getattr(net, key, None) for key in ("stem", "stages", "classifier"))
    chain = list(stages) if isinstance(stages, nn.Sequential | nn.ModuleList) else []
    if not (isinstance(stem, nn.Conv2d) and isinstance(classifier, nn.Linear) and chain):
        raise SparsityError(f"{name} is not a wired network: it needs {CHAIN}")
    wired = [stage for stage in chain if isinstance(stage, WiredStage)]
    if len(wired) < len(chain):
        raise SparsityError(f"every stage of {name} must be a WiredStage; pass the gated network")
    shapes = [stage.shape for stage in wired]
    if [stem.out_channels, *(shape.outputs for shape in shapes[:-1])] != [shape.inputs for shape in shapes]:
        raise SparsityError(f"the stages of {name} do not follow each other: each must read the one before it")
    return WiringGraph(
        stages=tuple(
            StageGraph(shape=stage.shape, stride=stage.stride, edges=tuple(matrix != 0 for matrix in stage.edges()))
            for stage in wired
        ),
        stem_stride=int(stem.stride[0]),
        stem_weights=stem.weight[0].numel(),
        num_classes=classifier.out_features,
    )


def learned_wiring(model: nn.Module) -> WiringGraph | None:
    """The graph of a wired network as it is now; None for other networks, and if its wired stages are not a chain."""
    with suppress(SparsityError):
        return wiring_graph(model) if wired_stages(model) else None
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class Live:
    """The nodes and edges that are computed under one convention; each field has one entry per stage.

    Output nodes of a stage are input nodes of the next, but have a filter only there, so the two masks may differ.
    """

    nodes: tuple[Masks, ...]
    edges: tuple[Masks, ...]
    constant: tuple[Masks, ...]
    """Nodes that are read but send the same map for every image."""

    @property
    def edge_counts(self) -> list[int]:
        """Number of live edges per stage."""
        return [sum(int(matrix.sum()) for matrix in matrices) for matrices in self.edges]

    @property
    def sender_counts(self) -> list[int]:
        """Number of live nodes with a filter per stage."""
        return [sum(int(mask.sum()) for mask in groups[:-1]) for groups in self.nodes]


def live_by_one_hop(graph: WiringGraph) -> Live:
    """The convention of Discovering Neural Wirings: every edge counts, and a node is judged by its own edges only.

    An output node is alive if it has incoming edges, any other node if it has outgoing ones. A node that has outgoing
    but no incoming edges counts in full: it sends a map made from the shift of its batch norm.
    """
    nodes = tuple((*_senders(stage), stage.edges[-1].any(1)) for stage in graph.stages)
    nothing = tuple(tuple(torch.zeros_like(mask) for mask in groups) for groups in nodes)
    return Live(nodes=nodes, edges=tuple(stage.edges for stage in graph.stages), constant=nothing)


def live_recursively(graph: WiringGraph) -> Live:
    """What the output really depends on: nodes and edges on a path from the image to the classifier.

    A node that no path from the image reaches sends the same map for every image. It is not alive, and neither are its
    edges, because its contribution can be stored. If it is read, it is `constant`.
    """
    stages = list(zip(graph.stages, _varying(graph), _read(graph), strict=True))
    return Live(
        nodes=tuple(tuple(v & r for v, r in zip(varying, read, strict=True)) for _, varying, read in stages),
        edges=tuple(
            tuple(matrix & torch.cat(varying[:t]) & read[t][:, None] for t, matrix in enumerate(stage.edges, 1))
            for stage, varying, read in stages
        ),
        # output nodes send nothing here; they are input nodes of the next stage
        constant=tuple(
            (*(~v & r for v, r in zip(varying[:-1], read[:-1], strict=True)), torch.zeros_like(read[-1]))
            for _, varying, read in stages
        ),
    )


def _senders(stage: StageGraph) -> Masks:
    """Nodes with outgoing edges."""
    sends = stage.edges[0].new_zeros(sum(stage.shape.sources))
    for matrix in stage.edges:
        sends[: matrix.shape[1]] |= matrix.any(0)
    return torch.split_with_sizes(sends, stage.shape.sources)


def _varying(graph: WiringGraph) -> list[Masks]:
    """Nodes that depend on the image; all channels of the stem do."""
    found: list[Masks] = []
    for stage in graph.stages:
        groups = [found[-1][-1] if found else stage.edges[0].new_ones(stage.shape.inputs)]
        for matrix in stage.edges:
            groups.append((matrix & torch.cat(groups)).any(1))
        found.append(tuple(groups))
    return found


def _read(graph: WiringGraph) -> list[Masks]:
    """Nodes that the classifier depends on."""
    found: list[Masks] = []
    for stage in reversed(graph.stages):
        groups = [found[0][0] if found else stage.edges[0].new_ones(stage.shape.outputs)]
        read = stage.edges[0].new_zeros(sum(stage.shape.sources))
        for matrix, size in zip(reversed(stage.edges), reversed(stage.shape.sources), strict=True):
            end = matrix.shape[1]
            read[:end] |= (matrix & groups[0][:, None]).any(0)
            # all groups that could read this one are done
            groups.insert(0, read[end - size : end])
        found.insert(0, tuple(groups))
    return found


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
    nodes: int
    """Number of nodes that have a filter."""
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
    graph = wiring_graph(net)
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


def wiring_figures(graph: WiringGraph, size: int) -> dict[str, Any]:
    """Existing edges, and what the live graph costs for images of `size` pixels, by both conventions.

    "complete" is the graph with every usable edge.
    """
    stages = (replace(stage, edges=tuple(e | ~e for e in stage.edges)) for stage in graph.stages)
    complete = replace(graph, stages=tuple(stages))
    return {
        "edges": graph.edge_count,
        "usable_edges": graph.usable_edges,
        "one_hop": asdict(wiring_cost(graph, size)),
        "recursive": asdict(wiring_cost(graph, size, recursive=True)),
        "complete": asdict(wiring_cost(complete, size)),
    }
