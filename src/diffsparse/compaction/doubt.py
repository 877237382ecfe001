"""Facts that hold at one size of the input and not at another: code may pad or branch by sizes."""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from diffsparse.compaction.graph import Graph, Node, Value
from diffsparse.compaction.masks import some


class Places:
    """Where nodes of a recording stand, in terms that another recording of the same model shares."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[str, int]] = {}
        self._names, self._seen = Counter[str](), Counter[Hashable]()

    def of(self, node: Node) -> Hashable:
        """The module that runs, which of its calls it is, the operator, and how often that ran in this call before."""
        place = *self.call(node), node.op
        self._seen[place] += 1
        return *place, self._seen[place]

    def call(self, node: Node) -> tuple[str, int]:
        """The name of the module that runs, and which of its calls it is."""
        name = "" if node.call is None else node.call.name
        if id(node.call) not in self._calls:
            self._calls[id(node.call)] = name, self._names[name]
            self._names[name] += 1
        return self._calls[id(node.call)]


class Doubts:
    """What one recording takes for the same everywhere and others, at other sizes, do not.

    Where a module runs other operations at another size, it branches by sizes. What it would do at a third one is not
    known; it may pad or resize, say. So modules of its class are trusted with zeros, and to treat all constants alike.

    Args:
        graph: the recording to doubt.
        others: those at other sizes.
        same_sizes: more of them, in which other operations say nothing of other sizes.
    """

    def __init__(self, graph: Graph, others: list[Graph], same_sizes: Sequence[Graph] = ()) -> None:
        self._others = [_by_place(other) for other in (*others, *same_sizes)]
        self._places = Places()
        self._branching = {kind for other in others for kind in _branching(graph, other)}
        self.raised = False
        """Whether any fact was given up."""

    @contextmanager
    def about(self, node: Node) -> Iterator[None]:
        """While its rule describes the node: give up what is not so elsewhere. For all nodes, in their order."""
        place = self._places.of(node)
        elsewhere = [other[place] for other in self._others if place in other]
        self._raise(node, node.inputs, [other.inputs for other in elsewhere])
        yield
        self._raise(node, node.outputs, [other.outputs for other in elsewhere])

    def _raise(self, node: Node, values: list[Value], elsewhere: list[list[Value]]) -> None:
        tracked = [value.parameter is None and value.axes is not None for value in values]
        for others in elsewhere:
            for value, other, counts in zip(values, others, tracked, strict=False):
                if counts:
                    self._compare(value, other)
        if _kind(node) in self._branching:
            for value, counts in zip(values, tracked, strict=True):
                if counts and value.depends_on_input:
                    was = value.fixed
                    self._give_up(value, value.numbers == 0)
                    if not value.carried.size:
                        value.carry(was, value.numbers)

    def _compare(self, value: Value, other: Value) -> None:
        if value.same_as is None and not value.carried.size and not some(value.fixed):
            return
        was = value.fixed
        agreed = _agreed(value, value.numbers, other, other.fixed, other.numbers)
        self._give_up(value, agreed)
        moving = other.carried.size and other.shares.shape[1] == 1
        also = _agreed(value, value.numbers, other, other.carried, other.shares[:, 0]) if moving else was & False
        if not value.carried.size:
            value.carry(was & also, value.numbers)
        elif value.shares.shape[1] == 1:
            shares = value.shares[:, 0]
            agreed = _agreed(value, shares, other, other.fixed, other.numbers)
            also = _agreed(value, shares, other, other.carried, other.shares[:, 0]) if moving else also
            self._give_up_carried(value, agreed | also)
        else:
            alike = other.shares.shape == value.shares.shape and np.allclose(other.shares, value.shares, 1e-9)
            self._give_up_carried(value, other.carried if alike else was & False)
        if value.same_as is not None and other.same_as is None:
            value.same_as, self.raised = None, True

    def _give_up_carried(self, value: Value, agreed: Any) -> None:
        if some(value.carried & ~agreed):
            value.carried, self.raised = value.carried & agreed, True

    def _give_up(self, value: Value, agreed: Any) -> None:
        """Of what is fixed, only what is agreed on stays."""
        if some(value.fixed & ~agreed):
            value.fixed, value.known, self.raised = value.fixed & agreed, False, True


def _by_place(graph: Graph) -> dict[Hashable, Node]:
    places = Places()
    return {places.of(node): node for node in graph.nodes}


def _agreed(value: Value, numbers: Any, other: Value, mask: Any, others: Any) -> Any:
    """Channels of `value` of which `mask` and the numbers `others`, one per channel of `other`, say the same.

    Along dimensions of the same size they are the same channels; along others a channel of `value` stands for all.
    """
    if other.axes is None or len(other.shape) != len(value.shape) or value.axes is None:
        return np.zeros(value.channels, bool)
    mask, others = mask.reshape(other.grid), others.reshape(other.grid)
    rest = tuple(d for d, n in enumerate(other.shape) if d not in value.axes or n != value.shape[d])
    first = others[tuple(slice(0, 1) if d in rest else slice(None) for d in range(others.ndim))]
    mask = (mask & (others == first)).all(rest, keepdims=True)
    mask, first = (np.broadcast_to(grid, value.grid).reshape(-1) for grid in (mask, first))
    return np.asarray(mask & np.isclose(first, numbers, rtol=1e-9, atol=0))


def _kind(node: Node) -> type | None:
    return None if node.call is None else type(node.call.module)


def _branching(graph: Graph, other: Graph) -> set[type | None]:
    """Classes of modules that do not run the same operations in both recordings."""
    found: list[dict[tuple[str, int], list[str]]] = []
    kinds: dict[tuple[str, int], type | None] = {}
    for recording in (graph, other):
        places, ran = Places(), dict[tuple[str, int], list[str]]()
        for node in recording.nodes:
            ran.setdefault(places.call(node), []).append(node.op)
            kinds[places.call(node)] = _kind(node)
        found.append(ran)
    return {kinds[call] for call in {*found[0], *found[1]} if found[0].get(call) != found[1].get(call)}
