"""Whether what a recording took for constant, although Python computed it, is the same for another input."""

import torch
from torch import Tensor, nn

from diffsparse.compaction.capture import capture
from diffsparse.compaction.graph import Graph
from diffsparse.compaction.verify import copied, other_inputs, same_draws
from diffsparse.example import Example


def assumptions_hold(model: nn.Module, example: Example, graph: Graph) -> bool:
    """Whether the trusted numbers and the computed weights of `graph` are the same for an input of another size.

    They may come from the size or the data of the input. Nothing is run if nothing was assumed.
    """
    computed = _computed_weights(graph)
    if not graph.trusted and not computed:
        return True
    for args, kwargs in other_inputs((example.args, example.kwargs)):
        try:
            with same_draws():
                other, _ = capture(model, *copied((args, kwargs)))
        except Exception:
            # whatever the user's model raises, it does not take this input
            continue
        others = _computed_weights(other)
        same = len(others) == len(computed) and all(map(torch.equal, computed, others))
        return same and graph.trusted == other.trusted
    return False


def _computed_weights(graph: Graph) -> list[Tensor]:
    layers = [node.layer for node in graph.nodes if node.layer is not None]
    return [tensor for layer in layers for tensor in layer.computed.values()]
