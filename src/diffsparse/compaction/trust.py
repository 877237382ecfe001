"""Whether what a recording took for constant, although Python computed it, is the same for another input."""

import torch
from torch import Tensor

from diffsparse.compaction.graph import Graph


def assumes_something(graph: Graph) -> bool:
    """Whether there are trusted numbers or computed weights, which may come from the size or the data of the input."""
    return bool(graph.trusted) or bool(_computed_weights(graph))


def assumptions_hold(graph: Graph, other: Graph) -> bool:
    """Whether they are the same in `other`, a recording of the same model at another size."""
    computed, others = _computed_weights(graph), _computed_weights(other)
    same = len(others) == len(computed) and all(map(torch.equal, computed, others))
    return same and graph.trusted == other.trusted


def _computed_weights(graph: Graph) -> list[Tensor]:
    layers = [node.layer for node in graph.nodes if node.layer is not None]
    return [tensor for layer in layers for tensor in layer.computed.values()]
