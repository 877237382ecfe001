"""Constants that vary with the position: which there are in a recorded run, and from which sizes they follow."""

from functools import cached_property
from typing import TypeAlias

from diffsparse.compaction.evaluate import HANDLERS, evaluate
from diffsparse.compaction.graph import Call, Graph, Node, Value
from diffsparse.compaction.masks import every
from diffsparse.compaction.patterns import Pattern, of_channels, of_entries
from diffsparse.compaction.positions import Size
from diffsparse.compaction.sizes import Sizes, SizeTable, width_dim

Path: TypeAlias = tuple[int, list[tuple[int, int]]]
"""A dimension of a module's input, and steps (stride, least) from its size to another one."""

Anchor: TypeAlias = tuple[Call, list[Path | None]]
"""A call whose input tells sizes, and how those of the dimensions of a tensor follow from it."""

# A larger table would take more memory than the layers that it replaces.
LARGEST = 1 << 18


class Constants:
    """The values of a recorded run that do not depend on the input, but vary with the position.

    Args:
        graph: the recorded run, with the tensors of the model.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph, self._patterns = graph, dict[int, Pattern]()
        for node in graph.nodes:
            goes_on = bool(self._patterns) and any(id(value) in self._patterns for value in node.inputs)
            if goes_on or self._may_vary(node):
                self._note(node)

    def of(self, value: Value) -> Pattern | None:
        """What `value` is at every size, if that is known of all of it."""
        return self._patterns.get(id(value))

    def anchor(self, call: Call) -> Anchor | None:
        """As `anchor_of`, for the output of `call`; None also if that is not known."""
        pattern = self.of(call.output)
        return None if pattern is None else self.anchor_of(call, pattern)

    def anchor_of(self, call: Call, pattern: Pattern) -> Anchor | None:
        """The innermost call, from `call` outwards, whose input tells the sizes of `pattern`, and how they follow.

        None if there is no such call.
        """
        wanted = [None if axis is None else axis.base for axis in pattern.axes]
        around: Call | None = call
        while around is not None:
            given = self._sizes.of(around.input)
            paths = [None if size is None else _path(size, given) for size in wanted]
            if [path is None for path in paths] == [size is None for size in wanted]:
                return around, paths
            around = around.parent
        return None

    @cached_property
    def _sizes(self) -> SizeTable:
        return SizeTable(self._graph)

    @staticmethod
    def _may_vary(node: Node) -> bool:
        """Whether the operator may make something that varies of something that does not."""
        if node.op not in HANDLERS or not node.outputs:
            return False
        source, out = node.inputs[0], node.outputs[0]
        return source.axes is not None and every(source.fixed) and (out.axes is None or not every(out.fixed))

    def _note(self, node: Node) -> None:
        patterns = {id(value): pattern for value in node.inputs if (pattern := self._known(value, node)) is not None}
        if any(id(value) not in patterns for value in node.inputs):
            return
        try:
            made = evaluate(node, lambda value: patterns[id(value)])
        except (RuntimeError, TypeError, ValueError, IndexError):
            # an operator that does not take tables in float64 is computed as before
            return
        for value, pattern in zip(node.outputs, made, strict=False):
            if not value.discrete and pattern.data.numel() <= LARGEST:
                self._patterns[id(value)] = pattern

    def _known(self, value: Value, node: Node) -> Pattern | None:
        """What is known of an operand of `node`."""
        known = value.parameter is not None or id(value) in self._patterns
        known = known or (value.axes is not None and every(value.fixed))
        return self.seen_by(value, node) if known else None

    def seen_by(self, value: Value, node: Node) -> Pattern | None:
        """The operand `value` of `node`; if only some of its channels are fixed, others are zero here."""
        if value.parameter is not None:
            return of_entries(self._graph.tensors[value.parameter])
        if id(value) in self._patterns:
            return self._patterns[id(value)]
        if value.axes is None or value.discrete:
            return None
        sizes = list(self._sizes.of(value))
        if (width := width_dim(node)) is not None:
            # weights that were computed are as long as they are at every size
            sizes = [None if value is not node.inputs[0] or dim == width else size for dim, size in enumerate(sizes)]
        return of_channels(value, tuple(sizes))


def constants_of(graph: Graph) -> Constants:
    """The constants of `graph`, found when first asked for: before anything is cut from the model."""
    if graph.constants is None:
        graph.constants = Constants(graph)
    return graph.constants


def _path(size: Size, given: Sizes) -> Path | None:
    steps: list[tuple[int, int]] = []
    while size not in given:
        if size.of is None:
            return None
        steps.insert(0, (size.stride, size.least))
        size = size.of
    return given.index(size), steps
