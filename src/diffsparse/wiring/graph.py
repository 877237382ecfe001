"""The learned graph as plain data, and which of its nodes and edges are alive."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_module
from diffsparse.wiring.edges import StageShape
from diffsparse.wiring.stage import WiredStage

Groups = tuple[Tensor, ...]
"""A bool mask for each group of nodes of a stage, from the input nodes to the output nodes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StageGraph:
    """The edges of one stage."""

    shape: StageShape
    """How many nodes."""
    stride: int
    """Of the filters of the input nodes."""
    edges: tuple[Tensor, ...]
    """For each target group a bool matrix (outputs, fan-in): whether the edge is there."""

    def blocks(self, target: int) -> tuple[Tensor, ...]:
        """The edges into group `target` (from 1), split by the group that they come from."""
        return torch.split_with_sizes(self.edges[target - 1], self.shape.sources[:target], dim=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class WiringGraph:
    """A network of wired stages, one behind the other, between a stem and a classifier."""

    stages: tuple[StageGraph, ...]
    """The output nodes of a stage are the input nodes of the next."""
    stem_stride: int
    """Of the convolution in front."""
    stem_weights: int
    """Weights of that convolution for one of its outputs."""
    num_classes: int
    """Outputs of the classifier."""

    @property
    def edge_count(self) -> int:
        """Edges that are there."""
        return sum(int(matrix.sum()) for stage in self.stages for matrix in stage.edges)

    @property
    def usable_edges(self) -> int:
        """Edges that could be there."""
        return sum(stage.shape.usable_edges for stage in self.stages)


@torch.no_grad()
def wiring_graph(net: nn.Module) -> WiringGraph:
    """The graph of a network with a convolution `stem`, a sequence `stages` of `WiredStage`s and a `classifier`.

    Example:
        >>> from diffsparse.wiring.mobilenet import WiredMobileNet
        >>> wiring_graph(WiredMobileNet()).usable_edges
        6981632
    """
    require_module("net", net)
    stem, stages, classifier = (getattr(net, key, None) for key in ("stem", "stages", "classifier"))
    chain = list(stages) if isinstance(stages, nn.Sequential | nn.ModuleList) else []
    if not (isinstance(stem, nn.Conv2d) and isinstance(classifier, nn.Linear) and chain):
        raise SparsityError(
            f"{type(net).__name__} is no wired network: it needs a convolution 'stem', a sequence 'stages' of "
            "WiredStages and a linear 'classifier'"
        )
    if not all(isinstance(stage, WiredStage) for stage in chain):
        raise SparsityError(f"every stage of {type(net).__name__} must be a WiredStage; give the gated network")
    graphs = tuple(
        StageGraph(shape=stage.shape, stride=stage.stride, edges=tuple(matrix != 0 for matrix in stage.edges()))
        for stage in chain
        if isinstance(stage, WiredStage)
    )
    widths = [stem.out_channels, *(graph.shape.outputs for graph in graphs[:-1])]
    if widths != [graph.shape.inputs for graph in graphs]:
        raise SparsityError(
            f"the stages of {type(net).__name__} do not follow each other: each must read the one before"
        )
    return WiringGraph(
        stages=graphs,
        stem_stride=int(stem.stride[0]),
        stem_weights=stem.weight[0].numel(),
        num_classes=classifier.out_features,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Live:
    """What of a graph counts as alive, by one convention."""

    nodes: tuple[Groups, ...]
    """For each stage: nodes that are computed. The output nodes of a stage have no filter; the next stage's input nodes
    have, so that the two masks of the same nodes may differ."""
    edges: tuple[tuple[Tensor, ...], ...]
    """For each stage and target group: edges that are computed."""
    constant: tuple[Groups, ...]
    """For each stage: nodes that are read but send the same map for every image."""


def live_by_one_hop(graph: WiringGraph) -> Live:
    """The convention of Discovering Neural Wirings: every edge counts, and a node by its own edges only.

    A node with outgoing edges is alive, an output node is alive with incoming ones. A node without incoming but with
    outgoing edges counts in full: it sends a map, made of the shift of its batch norm.
    """
    nodes = tuple((*_senders(stage), stage.edges[-1].any(1)) for stage in graph.stages)
    nothing = tuple(tuple(torch.zeros_like(mask) for mask in groups) for groups in nodes)
    return Live(nodes=nodes, edges=tuple(stage.edges for stage in graph.stages), constant=nothing)


def live_recursively(graph: WiringGraph) -> Live:
    """What the output truly depends on: nodes and edges on a path from the image to the classifier.

    A node without such a path behind it sends the same map for every image. Whether it is read or not, it is not alive,
    and neither are its edges: its part of the sum can be stored. Nodes of this kind that are read are `constant`.
    """
    live: list[tuple[Groups, Groups, Groups]] = []
    for stage, varies, read in zip(graph.stages, _varying(graph), _read(graph), strict=True):
        nodes = tuple(v & r for v, r in zip(varies, read, strict=True))
        edges = tuple(
            matrix & torch.cat(varies[:target]) & read[target][:, None] for target, matrix in enumerate(stage.edges, 1)
        )
        # an output node has no filter and sends nothing; the next stage has it among its input nodes
        constant = (*(~v & r for v, r in zip(varies[:-1], read[:-1], strict=True)), torch.zeros_like(read[-1]))
        live.append((nodes, edges, constant))
    return Live(
        nodes=tuple(nodes for nodes, _, _ in live),
        edges=tuple(edges for _, edges, _ in live),
        constant=tuple(constant for _, _, constant in live),
    )


def _senders(stage: StageGraph) -> list[Tensor]:
    """Nodes of each source group with an outgoing edge."""
    targets = range(1, stage.shape.groups + 1)
    return [
        torch.stack([stage.blocks(target)[source].any(0) for target in targets if target > source]).any(0)
        for source in range(stage.shape.groups)
    ]


def _varying(graph: WiringGraph) -> list[Groups]:
    """Nodes that depend on the image, every channel of the stem being one that does."""
    found: list[Groups] = []
    for stage in graph.stages:
        groups = [found[-1][-1] if found else stage.edges[0].new_ones(stage.shape.inputs)]
        for matrix in stage.edges:
            groups.append((matrix & torch.cat(groups)).any(1))
        found.append(tuple(groups))
    return found


def _read(graph: WiringGraph) -> list[Groups]:
    """Nodes that the classifier depends on."""
    found: list[Groups] = []
    wanted = graph.stages[-1].edges[0].new_ones(graph.stages[-1].shape.outputs)
    for stage in reversed(graph.stages):
        groups = [wanted]
        for source in reversed(range(stage.shape.groups)):
            blocks = [stage.blocks(target)[source] for target in range(source + 1, stage.shape.groups + 1)]
            reads = [(block & mask[:, None]).any(0) for block, mask in zip(blocks, groups, strict=True)]
            groups.insert(0, torch.stack(reads).any(0))
        found.insert(0, tuple(groups))
        wanted = groups[0]
    return found
