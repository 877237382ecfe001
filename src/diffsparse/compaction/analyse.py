"""Which channels are read, which stay: from a recorded run to the widths of every layer."""

from collections import Counter
from contextlib import nullcontext
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from diffsparse.compaction.attributes import keep_given_widths_alike, makes_one_head, shows_nothing
from diffsparse.compaction.bake import BAKED, hooks_only_compute_weights
from diffsparse.compaction.borrowed import may_borrow
from diffsparse.compaction.channel_maps import channel_maps_of
from diffsparse.compaction.constants import constants_of
from diffsparse.compaction.graph import Call, Graph, Node, Value, read_counts
from diffsparse.compaction.head_order import live_in_front
from diffsparse.compaction.masks import Mask, every, some
from diffsparse.compaction.rules.base import EachChannel, Rule, is_one_of, pin, read_all
from diffsparse.compaction.rules.dimensions import keep_whole
from diffsparse.compaction.rules.layer import Layer
from diffsparse.compaction.rules.movement import names_sizes, passes_on
from diffsparse.compaction.sharing import Uses, same_layer, shared_parameters
from diffsparse.compaction.stated import Stated, keep_stated
from diffsparse.compaction.widening import Widening, widen_layers, widen_tensors

LOSSLESS = Widening()
UnseenReads: TypeAlias = Literal["none", "unread", "all"]
DeadModules: TypeAlias = Literal["leave", "stand in", "stay"]


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
        dead_modules: what becomes of modules that are not needed: they "leave" a `Sequential`, others "stand in" for
            them where they are, or they "stay" and run, with one channel each.
        heads: whether heads of attention may leave the tensors between layers, too.
        within: whether heads may become narrower there, as far as the widest of them allows.
        whole_heads: whether a single head stays as wide as its module says, as each of several heads does.
        stated: by the name of a layer, its widths that code outside of it reads, and that stay therefore.
        widening: which dead channels stay all the same.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        narrow: bool = True,
        trust_reshape_sizes: bool = True,
        assume_unseen_reads: UnseenReads = "none",
        dead_modules: DeadModules = "leave",
        heads: bool = False,
        within: bool = False,
        whole_heads: bool = False,
        stated: Stated | None = None,
        widening: Widening = LOSSLESS,
    ) -> None:
        self._stated = stated or {}
        self.graph, self.constants, self.widening = graph, constants_of(graph), widening
        self.maps, self.dead_modules, self.narrow = channel_maps_of(graph), dead_modules, narrow
        self._heads, self._within = heads, within
        self._reads = read_counts(graph.nodes, graph.results) if dead_modules == "stay" else Counter[int]()
        self._counts, self._unread = graph.call_counts(), set[str]()
        self._leaned_on: dict[int, Mask] = {}
        # a constant that nobody reads needs no map: its layers are treated one by one
        while True:
            self.removed: dict[str, Call] = {}
            self.emitted: dict[str, Call] = {}
            self.nodes = self._without_dead_modules()
            self.values = self._find_values()
            self._free_layers()
            self._find_needs(assume_unseen_reads)
            for node in self.nodes:
                node.heads, node.within = heads, within
                if names_sizes(node):
                    trusted = trust_reshape_sizes and not (whole_heads and makes_one_head(node))
                    node.rigid |= not trusted or shows_nothing(node)
            unread = {name for name, call in self.emitted.items() if not some(call.output.need)}
            self._unread |= unread
            if not unread:
                with live_in_front(self.nodes, self.values) if within else nullcontext():
                    self._find_widths()
                if not self._more_to_lean_on():
                    break

    @property
    def layers(self) -> list[tuple[Node, Layer]]:
        """Every layer with its node."""
        return [(node, node.layer) for node in self.nodes if node.layer is not None]

    def _find_values(self) -> list[Value]:
        """Every value of the nodes, once, with fresh masks."""
        seen = {id(v): v for node in self.nodes for v in (*node.inputs, *node.outputs)}
        seen |= {id(v): v for v in self.graph.results}
        for value in seen.values():
            if value.axes is not None:
                value.need, value.keep = np.zeros((2, value.channels), bool)
                value.widths = None
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
        if self.dead_modules == "stay":
            return None
        if not start.depends_on_input or not out.axis or call.last_node == call.first_node or not self._runs_once(call):
            return None
        passes = out.axis == start.axis and out is not start and out.origin is start.origin
        emits = not every(out.fixed) and self.constants.anchor(call) is not None
        if not passes and (not emits or call.name in self._unread):
            return None
        if next(call.module.parameters(), None) is None or self._leaks(call):
            return None
        (self.removed if passes else self.emitted)[call.name] = call
        rule, inputs = (Passed(), [start]) if passes else (Emitted(), [])
        return Node("module", (), {}, inputs, [out], None, call, rule=rule)

    def _runs_once(self, call: Call | None) -> bool:
        """Whether the module is a part of the model and is called only once."""
        return call is not None and call.parent is not None and self._counts[call.module] == 1

    def _leaks(self, call: Call) -> bool:
        """Whether something made inside the call other than its output, or a weight of it, is used outside."""
        inside = self.graph.nodes[call.first_node : call.last_node]
        made = [id(value) for node in inside for value in node.outputs if value is not call.output]
        held = (*call.module.parameters(), *call.module.buffers())
        spans = [*map(self._uses.of, made), *(span for tensor in held for span in self._uses.of_tensor(tensor))]
        return any(first < call.first_node or last >= call.last_node for first, last in filter(None, spans))

    @cached_property
    def _uses(self) -> Uses:
        return Uses(self.graph)

    def _free_layers(self) -> None:
        shared, self._pinned_vectors = shared_parameters(self.nodes)
        for node in self.nodes:
            layer = node.layer
            if layer is None:
                node.rigid = bool(shared) and any(v.parameter in shared for v in node.inputs)
                continue
            around = {id(n): n for name in layer.tensors.values() for n in shared.get(name, ())} if shared else {}
            layer.scale = None
            layer.twins = tuple(n.layer for n in around.values() if n.layer is not None)
            layer.pinned = any(not same_layer(n, node) for n in around.values())
            layer.borrows = layer.pinned and may_borrow(node, layer, self.graph) and self._runs_once(node.call)
            if layer.borrows:
                # its weight is not cut, so it agrees with nobody
                layer.twins = ()
            layer.call = node.call if layer.borrows or (not layer.pinned and self._is_module(node, layer)) else None
            layer.pinned |= node.sealed or (bool(layer.computed) and layer.mixes and not layer.free)
        for _, layer in self.layers:
            if layer.twins and not all(map(layer.may_share, layer.twins)):
                layer.call = None
        for node, layer in self.layers if self.maps else ():
            layer.mapped_rows = layer.mapped_columns = None
            if self.dead_modules != "stay":
                self.maps.leave_to_maps(node, layer)

    def _is_module(self, node: Node, layer: Layer) -> bool:
        """Whether the layer is one call of one module, and that module nothing but the layer."""
        call = node.call
        if call is None or call.parent is None or not call.plain:
            return False
        if self._counts[call.module] != max(len(layer.twins), 1):
            return False
        # a hook may have kept the input for others, and a select would make it narrower
        if self.dead_modules == "stay" and call.module._forward_hooks and self._reads[id(call.input)] > 1:
            return False
        whole = node.rule.is_all_of(call, node)
        if layer.computed:
            return whole and self._can_bake(node, call)
        stored = layer.tensors == {role: f"{call.name}.{role}" for role in layer.tensors}
        return stored and is_one_of(call.module, node.rule.modules) and (whole or self._only_wraps(call, node))

    def _can_bake(self, node: Node, call: Call) -> bool:
        """Whether an ordinary layer with the computed weights can stand for the call."""
        if node.op not in BAKED or not hooks_only_compute_weights(call.module) or self._leaks(call):
            return False
        inside = self.graph.nodes[call.first_node : call.last_node]
        return all(n is node or not any(v.depends_on_input for v in n.inputs) for n in inside)

    def _only_wraps(self, call: Call, node: Node) -> bool:
        """Whether the call only pads or reshapes around the layer, so that a select and an expand can do without it."""
        value, behind = call.input, False
        for other in self.graph.nodes[call.first_node : call.last_node]:
            if other is node:
                fits, behind = value is node.layer.operand, True
            else:
                # behind the layer, another operator would have to see what an expand puts back
                fits = other.inputs[:1] == [value] and passes_on(other)
                fits = fits and not (behind and isinstance(other.rule, EachChannel))
            if not fits:
                return False
            value = other.output
        return value is call.output

    def _find_needs(self, assume_unseen_reads: UnseenReads) -> None:
        for value in self.graph.results:
            read_all(value)
        if assume_unseen_reads != "none":
            seen = {id(value) for node in self.nodes for value in node.inputs}
            for value in self.values:
                if assume_unseen_reads == "all" or id(value) not in seen:
                    read_all(value)
        for value in self.values if self._leaned_on else ():
            value.need |= self._leaned_on.get(id(value), False)
        for node in reversed(self.nodes):
            node.rule.needs(node)
            layer = node.layer
            # if others use its weight, the layer that holds it cannot go
            if layer is not None and layer.free and (self.dead_modules == "stay" or layer.borrows):
                layer.keep_something()
            if layer is not None and layer.call is not None and layer.call.name in self._stated:
                keep_stated(layer, self._stated[layer.call.name])
        for _, layer in self.layers:
            if layer.twins and layer.free:
                layer.compute_for_all_calls()

    def _more_to_lean_on(self) -> bool:
        """Whether channels are kept that have to be right, although nobody reads them; they are read from now on."""
        found = False
        for node in self.nodes:
            for value, mask in node.rule.leans_on(node):
                if some(missing := mask & value.keep & ~value.need):
                    self._leaned_on[id(value)], found = missing | self._leaned_on.get(id(value), False), True
        return found

    def _find_widths(self) -> None:
        values = [value for value in self.values if value.axes is not None]
        for value in values:
            value.keep |= value.need if self.narrow and (value.axis is not None or self._heads) else True
            keep_whole(value)
        pin([*self.graph.results, *self._pinned_vectors])
        for node, layer in self.layers:
            if layer.free:
                node.rule.unify_widths(node)
        self._settle()
        empty = [value for value in values if not some(value.keep)]
        for value in empty:
            value.keep[0] = True
        if empty:
            self._settle()
        if not self.widening.changes_nothing:
            self._widen(values)

    def _widen(self, values: list[Value]) -> None:
        layers = [layer for _, layer in self.layers]
        while widen_tensors(self.widening, values, layers):
            self._settle()
        widen_layers(self.widening, layers)

    def _settle(self) -> None:
        """Unify widths, backward and forward in turns, until a turn changes nothing."""
        # without free layers, because what they read and compute is kept already
        order = [node for node in self.nodes if node.layer is None or node.layer.twins or not node.layer.free]
        changed = True
        while changed:
            order, changed = order[::-1], False
            for node in order:
                changed |= node.rule.unify_widths(node)
            changed |= self._within and keep_given_widths_alike(self.nodes)
