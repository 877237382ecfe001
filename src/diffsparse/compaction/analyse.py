"""Which channels are read, which stay: from a recorded run to the widths of every layer."""

from typing import Literal, TypeAlias

import numpy as np

from diffsparse.compaction.graph import Call, Graph, Mask, Node, Value, every, how_many, some
from diffsparse.compaction.rules.base import EachChannel, Rule, pin, read_all, tracked, widen
from diffsparse.compaction.rules.layer import Layer, filled
from diffsparse.compaction.rules.movement import names_sizes

UnseenReads: TypeAlias = Literal["none", "unread", "all"]


class Passed(EachChannel):
    """Stands for a module that returns its input."""


class Emitted(Rule):
    """Stands for a module whose output is the same for every input."""

    def needs(self, node: Node) -> None:
        """Nothing is read."""

    def unify_widths(self, node: Node) -> bool:
        return False


class Analysis:
    """Which channels of a recorded run are read, and which stay.

    Each analysis starts with fresh masks, so one graph can be analysed several times; the latest one counts.

    Args:
        graph: the recorded run.
        narrow: whether tensors between layers may become narrower. If not, every layer is wrapped, and the code between
            layers sees the original widths.
        trust_reshape_sizes: whether a reshape that was given sizes is assumed to have computed them from the tensor.
        assume_unseen_reads: which tensors may be read by code that the recorder cannot see: "none", those that seem
            "unread", or "all".
        round_to: widths become multiples of this.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        narrow: bool = True,
        trust_reshape_sizes: bool = True,
        assume_unseen_reads: UnseenReads = "none",
        round_to: int = 1,
    ) -> None:
        self.graph, self.round_to = graph, round_to
        self._counts, self._unread = graph.call_counts(), set[str]()
        self._sized = any(len(v.shape) > 2 for node in graph.nodes for v in node.inputs if v.depends_on_input)
        # a constant that nobody reads needs no map: its layers are treated one by one
        while True:
            self.removed: dict[str, Call] = {}
            self.emitted: dict[str, Call] = {}
            self.nodes = self._without_dead_modules()
            self.values = self._find_values()
            self._free_layers()
            self._find_needs(assume_unseen_reads)
            for node in self.nodes:
                node.rigid |= names_sizes(node) and (not trust_reshape_sizes or _shows_nothing(node))
            unread = {name for name, call in self.emitted.items() if not some(call.output.need)}
            if not unread:
                break
            self._unread |= unread
        self._find_widths(narrow)

    @property
    def layers(self) -> list[tuple[Node, Layer]]:
        """Every layer with its node."""
        return [(node, node.layer) for node in self.nodes if node.layer is not None]

    def _find_values(self) -> list[Value]:
        """Every value of the nodes, once, with fresh masks."""
        seen = {id(v): v for node in self.nodes for v in (*node.inputs, *node.outputs)}
        moved = [v.channel_of_entry[0] for v in seen.values() if v.channel_of_entry is not None]
        seen |= {id(v): v for v in (*moved, *self.graph.results)}
        for value in seen.values():
            if value.axis is not None:
                value.need, value.keep = np.zeros((2, value.channels), bool)
        return list(seen.values())

    def _without_dead_modules(self) -> list[Node]:
        """The nodes, with one node for each module that passes its input on or emits a constant."""
        replaced: dict[int, Node] = {}
        inside: set[int] = set()
        for call in self.graph.calls:
            if call.first_node not in inside and (node := self._node_if_dead(call)):
                inside.update(range(call.first_node, call.last_node))
                replaced[call.first_node] = node
        numbered = enumerate(self.graph.nodes)
        return [replaced.get(index, node) for index, node in numbered if index in replaced or index not in inside]

    def _node_if_dead(self, call: Call) -> Node | None:
        start, out = call.input, call.output
        if not start.depends_on_input or not out.axis or call.last_node == call.first_node or not self._runs_once(call):
            return None
        passes = out.axis == start.axis and out is not start and out.origin is start.origin
        # a constant may depend on the size of the input, so it must stand where the size is known
        emits = out.known and not every(out.fixed) and (len(start.shape) > 2 or not self._sized)
        if not passes and (not emits or call.name in self._unread):
            return None
        if next(call.module.parameters(), None) is None or self._leaks(call):
            return None
        (self.removed if passes else self.emitted)[call.name] = call
        rule, inputs = (Passed(), [start]) if passes else (Emitted(), [])
        return Node("module", (), {}, inputs, [out], None, call, rule=rule)

    def _runs_once(self, call: Call) -> bool:
        """Whether the module is a part of the model and is called only once."""
        return call.parent is not None and self._counts[call.module] == 1

    def _leaks(self, call: Call) -> bool:
        """Whether something made inside the call other than its output, or a weight of it, is used outside."""
        span = range(call.first_node, call.last_node)
        made = {id(v) for i in span for v in self.graph.nodes[i].outputs} - {id(call.output)}
        others = [v for i, node in enumerate(self.graph.nodes) if i not in span for v in node.inputs]
        own = {id(tensor) for tensor in [*call.module.parameters(), *call.module.buffers()]}
        names = {name for name, tensor in self.graph.tensors.items() if id(tensor) in own}
        return any(id(v) in made or v.parameter in names for v in (*others, *self.graph.results))

    def _free_layers(self) -> None:
        shared = self._shared_parameters()
        for node in self.nodes:
            layer = node.layer
            if layer is None:
                node.rigid = bool(shared) and any(v.parameter in shared for v in node.inputs)
                continue
            around = {id(n): n for name in layer.tensors.values() for n in shared.get(name, ())} if shared else {}
            layer.twins = tuple(n.layer for n in around.values() if n.layer is not None)
            layer.pinned = any(n.layer is None or n.layer.tensors != layer.tensors for n in around.values())
            layer.call = node.call if not around and self._is_module(node, layer) else None

    def _shared_parameters(self) -> dict[str | None, list[Node]]:
        """Parameters that several nodes use, with these nodes."""
        users: dict[str | None, list[Node]] = {}
        for node in self.nodes:
            for value in node.inputs:
                if value.parameter is not None:
                    users.setdefault(value.parameter, []).append(node)
        return {name: nodes for name, nodes in users.items() if len(nodes) > 1 and nodes != nodes[:1] * len(nodes)}

    def _is_module(self, node: Node, layer: Layer) -> bool:
        """Whether the layer is one call of one module, and that module nothing but the layer."""
        call = node.call
        return (
            call is not None
            and call.plain
            and self._runs_once(call)
            and isinstance(call.module, node.rule.modules)
            and call.input is layer.operand
            and call.output is node.output
            and layer.tensors == {role: f"{call.name}.{role}" for role in layer.tensors}
        )

    def _find_needs(self, assume_unseen_reads: UnseenReads) -> None:
        for value in self.graph.results:
            read_all(value)
        if assume_unseen_reads != "none":
            seen = {id(value) for node in self.nodes for value in node.inputs}
            for value in self.values:
                if assume_unseen_reads == "all" or id(value) not in seen:
                    read_all(value)
        for node in reversed(self.nodes):
            node.rule.needs(node)

    def _find_widths(self, narrow: bool) -> None:
        values = [value for value in self.values if value.axis is not None]
        for value in values:
            value.keep |= value.need if narrow else True
        pin(self.graph.results)
        for node, layer in self.layers:
            if layer.free:
                node.rule.unify_widths(node)
        self._settle()
        empty = [value for value in values if not some(value.keep)]
        for value in empty:
            value.keep[0] = True
        if empty:
            self._settle()
        if self.round_to > 1:
            self._round(values)

    def _settle(self) -> None:
        """Unify widths, backward and forward in turns, until a turn changes nothing."""
        # without free layers, because what they read and compute is kept already
        order, changed = [node for node in self.nodes if node.layer is None or not node.layer.free], True
        while changed:
            order, changed = order[::-1], False
            for node in order:
                changed |= node.rule.unify_widths(node)

    def _round(self, values: list[Value]) -> None:
        for value in values:
            widen(value, self._rounded(value.keep, np.ones_like(value.keep)))
        self._settle()
        for _, layer in self.layers:
            if not layer.free or layer.groups > 1 or not some(layer.rows):
                continue
            if layer.mixes:
                layer.rows = self._rounded(layer.rows, layer.output.keep)
                layer.columns = self._rounded(layer.columns, layer.present)
            else:
                layer.rows = layer.columns = self._rounded(layer.rows, layer.present & layer.output.keep)

    def _rounded(self, mask: Mask, candidates: Mask) -> Mask:
        """`mask` widened to a multiple of `round_to`, as far as the candidates reach."""
        return filled(mask, -(-how_many(mask) // self.round_to) * self.round_to, candidates)


def _shows_nothing(node: Node) -> bool:
    """Whether only constants are read of what is reshaped: verification would not notice a mistake."""
    value = tracked(node.inputs[0])
    return value.axis is not None and not (value.need & ~value.fixed).any()
