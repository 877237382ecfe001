"""Where values and parameters are used, and parameters that several operations use."""

from collections.abc import Iterator
from typing import TypeAlias

from torch import Tensor

from diffsparse.compaction.graph import Graph, Node, Value
from diffsparse.compaction.rules.base import Rule


def shared_parameters(nodes: list[Node]) -> tuple[dict[str | None, list[Node]], list[Value]]:
    """Parameters that several nodes use, with these nodes, and vectors that have to stay whole.

    Vectors that all of their users follow need no care.
    """
    users: dict[str | None, list[Node]] = {}
    vectors: dict[str, Value] = {}
    for node in nodes:
        for value in node.inputs:
            if value.parameter is not None:
                users.setdefault(value.parameter, []).append(node)
                if value.axes is not None:
                    vectors[value.parameter] = value
    layers = [node.layer for node in nodes if node.layer is not None]
    pinned = [vector for layer in layers if layer.mixes for vector in layer.vectors]
    for name, vector in vectors.items():
        if all(_follows(node, vector) for node in users[name]):
            del users[name]
        else:
            pinned.append(vector)
    return {name: nodes for name, nodes in users.items() if len(nodes) > 1 and nodes != nodes[:1] * len(nodes)}, pinned


def _follows(node: Node, vector: Value) -> bool:
    """Whether the stored `vector` may become narrower as far as `node` is concerned."""
    rule = type(node.rule)
    if node.layer is not None:
        return bool(node.layer.operand is vector)
    return rule.follows_vectors or rule.unify_widths is Rule.unify_widths


def same_layer(node: Node, other: Node) -> bool:
    """Whether both use the same tensors in the same way."""
    return node.layer is not None and node.layer.tensors == other.layer.tensors and node.rule is other.rule


Span: TypeAlias = tuple[int, int]
"""The places of the first and of the last node that uses something."""


class Uses:
    """Where values and parameters of a recorded run are used; what the model returns is used behind the last node.

    Args:
        graph: the recorded run.
    """

    def __init__(self, graph: Graph) -> None:
        self._spans: dict[int | str, Span] = {}
        self._names: dict[int, list[str]] = {}
        for name, tensor in graph.tensors.items():
            self._names.setdefault(id(tensor), []).append(name)
        for place, node in enumerate(graph.nodes):
            self._note(place, node.inputs)
        self._note(len(graph.nodes), graph.results)

    def _note(self, place: int, values: list[Value]) -> None:
        for value in values:
            for key in (id(value), value.parameter):
                if key is not None:
                    self._spans[key] = self._spans.get(key, (place, place))[0], place

    def of(self, value: int) -> Span | None:
        """Of a value, given by its `id`; None if nothing uses it."""
        return self._spans.get(value)

    def of_tensor(self, tensor: Tensor) -> Iterator[Span]:
        """Of a parameter or buffer, under each of its names that is used."""
        return (self._spans[name] for name in self._names.get(id(tensor), ()) if name in self._spans)
