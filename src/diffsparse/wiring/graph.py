"""The learned graph as plain data, and which of its nodes and edges are alive."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_module
from diffsparse.wiring.edges import StageShape
from diffsparse.wiring.stage import WiredStage

Masks = tuple[Tensor, ...]
"""Bool tensors: one vector per group of nodes, input nodes first, or one matrix per target group."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StageGraph:
    """The edges of one stage."""

    shape: StageShape
    stride: int
    """Stride of the input nodes' filters."""
    edges: Masks
    """One matrix (outputs, fan-in) per target group: whether the edge exists."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WiringGraph:
    """A chain of wired stages between a stem and a classifier."""

    stages: tuple[StageGraph, ...]
    """The output nodes of each stage are the input nodes of the next."""
    stem_stride: int
    """Stride of the first convolution."""
    stem_weights: int
    """Number of its weights per output channel."""
    num_classes: int
    """Number of outputs of the classifier."""

    @property
    def edge_count(self) -> int:
        """Number of existing edges."""
        return sum(int(matrix.sum()) for stage in self.stages for matrix in stage.edges)

    @property
    def usable_edges(self) -> int:
        """Number of possible edges."""
        return sum(stage.shape.usable_edges for stage in self.stages)


@torch.no_grad()
def wiring_graph(net: nn.Module) -> WiringGraph:
    """The graph of a network with a convolution `stem`, a sequence `stages` of `WiredStage`s and a linear `classifier`.

    Example:
        >>> from diffsparse.wiring.mobilenet import WiredMobileNet
        >>> wiring_graph(WiredMobileNet()).usable_edges
        6981632
    """
    name = type(require_module("net", net)).__name__
    stem, stages, classifier = (getattr(net, key, None) for key in ("stem", "stages", "classifier"))
    chain = list(stages) if isinstance(stages, nn.Sequential | nn.ModuleList) else []
    if not (isinstance(stem, nn.Conv2d) and isinstance(classifier, nn.Linear) and chain):
        raise SparsityError(
            f"{name} is not a wired network: it needs a convolution 'stem', a sequence 'stages' of WiredStages and a "
            "linear 'classifier'"
        )
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Live:
    """The live part of a graph under one convention; each field has one entry per stage."""

    nodes: tuple[Masks, ...]
    """Nodes that are computed. The output nodes of a stage are the input nodes of the next, but only there do they have
    a filter, so the two masks may differ."""
    edges: tuple[Masks, ...]
    """Edges that are computed."""
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
    """Nodes with an outgoing edge."""
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
