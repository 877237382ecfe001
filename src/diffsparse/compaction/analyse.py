"""Which channels are read, which stay: from a recorded run to the widths of every layer."""

from typing import Literal, TypeAlias

import numpy as np
from torch import nn

from diffsparse.compaction.graph import Call, Graph, Node, Value, every, some
from diffsparse.compaction.rules.base import EachChannel, Rule, pin, read_all, tracked, widen
from diffsparse.compaction.rules.layer import Layer
from diffsparse.compaction.rules.movement import names_sizes

UnseenReads: TypeAlias = Literal["none", "unread", "all"]


class Passed(EachChannel):
    """Stands for a module that gives its input back."""


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
        self.graph = graph
        self.round_to = round_to
        self.removed: dict[str, Call] = {}
        self.emitted: dict[str, Call] = {}
        self._unread: set[str] = set()
        self._sized = any(len(v.shape) > 2 for node in graph.nodes for v in node.inputs if v.depends_on_input)
        # a constant that nobody reads needs no map: its layers are treated one by one
        while True:
            self.nodes = self._without_dead_modules()
            self.values = self._find_values()
            self._free_layers()
            self._find_needs(assume_unseen_reads)
            for node in self.nodes:
                node.rigid |= names_sizes(node) and (not trust_reshape_sizes or _shows_nothing(node))
            unread = {name for name, call in self.emitted.items() if call.output and not some(call.output.need)}
            if not unread:
                break
            self._unread |= unread
        self._find_widths(narrow)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Every module that was called, by name."""
        return {call.name: call.module for call in self.graph.calls}

    @property
    def layers(self) -> list[tuple[Node, Layer]]:
        """Every layer with its node."""
        return [(node, node.layer) for node in self.nodes if node.layer is not None]

    def _find_values(self) -> list[Value]:
        """Every value of the nodes, once, with fresh masks."""
        seen = {id(v): v for node in self.nodes for v in (*node.inputs, *node.outputs)}
        for value in [v.channel_of_entry[0] for v in seen.values() if v.channel_of_entry is not None]:
            seen[id(value)] = value
        for value in self.graph.results:
            seen[id(value)] = value
        for value in seen.values():
            if value.axis is not None:
                value.need, value.keep = np.zeros((2, value.channels), bool)
        return list(seen.values())

    def _without_dead_modules(self) -> list[Node]:
        """The nodes, with one node for each module that passes its input on or emits a constant."""
        counts = self.graph.call_counts()
        self.removed, self.emitted = {}, {}
        replaced: dict[int, Node] = {}
        inside: set[int] = set()
        for call in self.graph.calls:
            if call.first_node in inside or counts[call.module] > 1 or call.parent is None:
                continue
            rule = self._rule_if_dead(call)
            if rule is None:
                continue
            (self.removed if isinstance(rule, Passed) else self.emitted)[call.name] = call
            assert call.input is not None
            assert call.output is not None
            span = range(call.first_node, call.last_node)
            inside.update(span)
            inputs = [call.input] if isinstance(rule, Passed) else []
            replaced[call.first_node] = Node("module", (), {}, inputs, [call.output], None, call, rule=rule)
        numbered = enumerate(self.graph.nodes)
        return [replaced.get(index, node) for index, node in numbered if index in replaced or index not in inside]

    def _rule_if_dead(self, call: Call) -> Rule | None:
        start, out = call.input, call.output
        if (
            start is None
            or out is None
            or call.last_node == call.first_node
            or not start.depends_on_input
            or not out.axis
        ):
            return None
        passes = out.axis == start.axis and out is not start and out.origin is start.origin
        emits = out.known and not every(out.fixed) and call.name not in self._unread
        # a constant may depend on the size of the input, so it must stand where the size is known
        emits = emits and (len(start.shape) > 2 or not self._sized)
        if not (passes or emits):
            return None
        if not any(True for _ in call.module.parameters()) or self._leaks(call):
            return None
        return Passed() if passes else Emitted()

    def _leaks(self, call: Call) -> bool:
        """Whether something made inside the call other than its output, or a weight of it, is used outside."""
        span = range(call.first_node, call.last_node)
        made = {id(v) for i in span for v in self.graph.nodes[i].outputs} - {id(call.output)}
        others = [node for i, node in enumerate(self.graph.nodes) if i not in span]
        used = {id(v) for node in others for v in node.inputs} | {id(v) for v in self.graph.results}
        own = {id(tensor) for tensor in [*call.module.parameters(), *call.module.buffers()]}
        names = {name for name, tensor in self.graph.tensors.items() if id(tensor) in own}
        return bool(made & used) or any(v.parameter in names for node in others for v in node.inputs)

    def _free_layers(self) -> None:
        counts = self.graph.call_counts()
        shared = self._shared_parameters()
        for node in self.nodes:
            layer = node.layer
            if layer is None:
                node.rigid = bool(shared) and any(v.parameter in shared for v in node.inputs)
                continue
            around = {id(n): n for name in layer.tensors.values() for n in shared.get(name, ())} if shared else {}
            layer.twins = tuple(n.layer for n in around.values() if n.layer is not None)
            layer.pinned = any(n.layer is None or n.layer.tensors != layer.tensors for n in around.values())
            layer.free = not around and _is_module(node, layer, counts)
            layer.call = node.call if layer.free else None

    def _shared_parameters(self) -> dict[str | None, list[Node]]:
        """Parameters that several nodes use, with these nodes."""
        users: dict[str | None, list[Node]] = {}
        for node in self.nodes:
            for value in node.inputs:
                if value.parameter is not None:
                    users.setdefault(value.parameter, []).append(node)
        return {name: nodes for name, nodes in users.items() if len(nodes) > 1 and nodes != nodes[:1] * len(nodes)}

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
        """Unify widths, backward and forward in turns, until a turn changes nothing.

        Free layers are left out: what they read and compute is kept already.
        """
        order, changed = [node for node in self.nodes if node.layer is None or not node.layer.free], True
        while changed:
            order, changed = order[::-1], False
            for node in order:
                changed |= node.rule.unify_widths(node)

    def _round(self, values: list[Value]) -> None:
        for value in values:
            widen(value, _rounded(value.keep, np.ones_like(value.keep), self.round_to))
        self._settle()
        for _, layer in self.layers:
            if not layer.free or layer.groups > 1 or not layer.rows.any():
                continue
            there = layer.input.keep if layer.input.axis is not None else np.ones_like(layer.columns)
            if not layer.mixes:
                layer.rows = layer.columns = _rounded(layer.rows, there & layer.output.keep, self.round_to)
            else:
                layer.rows = _rounded(layer.rows, layer.output.keep, self.round_to)
                layer.columns = _rounded(layer.columns, there, self.round_to)


def _shows_nothing(node: Node) -> bool:
    """Whether only constants are read of what is reshaped: verification would not notice a mistake."""
    value = tracked(node.inputs[0])
    return value.axis is not None and not (value.need & ~value.fixed).any()


def _rounded(mask: np.ndarray, candidates: np.ndarray, multiple: int) -> np.ndarray:
    """`mask` with candidates added from the front until its size is a multiple, as far as they reach."""
    more = -int(mask.sum()) % multiple
    wider = mask.copy()
    wider[np.flatnonzero(candidates & ~mask)[:more]] = True
    return wider


def _is_module(node: Node, layer: Layer, counts: dict[nn.Module, int]) -> bool:
    """Whether the layer is one call of one module, and that module nothing but the layer."""
    call = node.call
    if call is None or counts[call.module] != 1 or call.parent is None or not call.plain:
        return False
    if not isinstance(call.module, node.rule.modules):
        return False
    if call.input is not layer.operand or call.output is not node.output:
        return False
    return layer.tensors == {role: f"{call.name}.{role}" for role in layer.tensors}
