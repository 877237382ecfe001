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


def may_come_from_sizes(graph: Graph) -> bool:
    """Whether code had asked for sizes before it gave a number that is trusted, or computed a weight."""
    computing = [node for node in graph.nodes if node.layer is not None and node.layer.computed]
    return any(node.after_sizes for node in (*computing, *(graph.nodes[place] for place in graph.trusted)))


def untrusted_places(graph: Graph, others: list[Graph]) -> Collection[int]:
    """The nodes of `graph` that took numbers for constant which are others in one of `others`, of other sizes.

    All of them if there is no other recording.
    """
    found: set[int] = set()
    for other in others:
        computed, elsewhere = _computed_weights(graph), _computed_weights(other)
        if len(elsewhere) != len(computed) or not all(map(torch.equal, computed, elsewhere)):
            return EVERYWHERE
        if list(graph.trusted.values()) != list(other.trusted.values()):
            confirmed = _by_call(other)
            found |= {place for key, place in _by_call(graph).items() if key not in confirmed}
    return found if others else EVERYWHERE


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
