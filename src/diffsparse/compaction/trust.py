"""Whether what a recording took for constant, although Python computed it, is the same for another input."""

import sys
from collections import Counter
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from diffsparse.compaction.graph import Graph

EVERYWHERE = range(sys.maxsize)
"""The places of all nodes."""


def assumes_something(graph: Graph) -> bool:
    """Whether there are trusted numbers or computed weights, which may come from the size or the data of the input."""
    return bool(graph.trusted) or bool(_computed_weights(graph))


def untrusted_places(graph: Graph, other: Graph | None) -> Collection[int]:
    """The nodes of `graph` that took numbers for constant which are others in `other`, recorded at another size.

    All of them if there is no other recording.
    """
    if other is None:
        return EVERYWHERE
    computed, others = _computed_weights(graph), _computed_weights(other)
    if len(others) != len(computed) or not all(map(torch.equal, computed, others)):
        return EVERYWHERE
    if list(graph.trusted.values()) == list(other.trusted.values()):
        return ()
    confirmed = _by_call(other)
    return {place for key, place in _by_call(graph).items() if key not in confirmed}


def _by_call(graph: Graph) -> dict[tuple[Any, ...], int]:
    """The places of trusted numbers by the module, the operator, how often both came before, and the numbers."""
    found: dict[tuple[Any, ...], int] = {}
    before: Counter[tuple[str, str]] = Counter()
    for place, (op, *numbers) in graph.trusted.items():
        call = graph.nodes[place].call
        where = "" if call is None else call.name, op
        found[*where, before[where], *numbers] = place
        before[where] += 1
    return found


def _computed_weights(graph: Graph) -> list[Tensor]:
    layers = [node.layer for node in graph.nodes if node.layer is not None]
    return [tensor for layer in layers for tensor in layer.computed.values()]
