"""Record what a model does by running it once."""

import weakref
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from diffsparse.compaction.doubt import Doubts
from diffsparse.compaction.graph import Call, Graph, Node, Value
from diffsparse.compaction.insight import can_look_into, inside, scripted_functions_as_written
from diffsparse.compaction.masks import single_number
from diffsparse.compaction.rules import OPAQUE, describe
from diffsparse.compaction.rules.base import numbers_in, takes_number
from diffsparse.compaction.spelling import is_in_place, spelling
from diffsparse.errors import SparsityError
from diffsparse.example import is_mask, map_tensors, tensors_in
from diffsparse.module_tree import memory_of, modules_by_name, tensors_by_name

# Checked first: most arguments are of these types, and `isinstance` is slow for tensors.
_PLAIN_TYPES = frozenset({int, float, bool, str, type(None)})
_SEVERAL = (tuple, list)
# Calls that tell how large a tensor is.
_SIZES = {"shape.__get__", "size", "numel", "nelement", "len", "stride", "nbytes.__get__", "untyped_storage"}
# Calls that take no more of other tensors than their dtype and device.
_LIKE_ANOTHER = {"to", "type_as"}
# Calls whose result differs each time.
_RANDOM = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "bernoulli", "multinomial", "normal"}


class _Recorder(TorchFunctionMode):
    """Turns every torch call into a node."""

    def __init__(self, model: nn.Module, untrusted: Collection[int], doubts: Doubts | None) -> None:
        super().__init__()
        self.untrusted, self.doubts = untrusted, doubts
        modules = modules_by_name(model)
        self.names = {module: name for name, module in modules.items()}
        self.graph = Graph([], [], [], tensors_by_name(modules), modules)
        self.stack: list[Call] = []
        self.sizes_asked = False
        self._inside = False
        self._values = {
            id(tensor): Value(tuple(tensor.shape), parameter=name, known=True)
            for name, tensor in self.graph.tensors.items()
        }
        # the entry of any other tensor goes when the tensor dies, because its `id` may be used again
        self.alive: dict[int, weakref.ref[Tensor]] = {}

    def value(self, tensor: Tensor) -> Value:
        """The value of `tensor`; nothing is known of a tensor that was not seen before."""
        known = self._values.get(id(tensor))
        if known is not None:
            return known
        self.graph.strangers.append(tensor)
        return self.note(tensor, Value(tuple(tensor.shape), depends_on_input=True))

    def note(self, tensor: Tensor, value: Value) -> Value:
        key = id(tensor)
        if key not in self._values:
            self.alive[key] = weakref.ref(tensor, lambda _: self._forget(key))
        self._values[key] = value
        return value

    def _forget(self, key: int) -> None:
        del self.alive[key], self._values[key]

    def watch(self) -> list[RemovableHandle]:
        # global hooks are faster than one hook per module, but run before the hooks of the module itself
        hooked = {module for module in self.names if module._forward_hooks}

        def unless_hooked(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if module not in hooked:
                self._end(module, args, kwargs, output)

        everywhere = [
            hooks.register_module_forward_pre_hook(self._begin),
            hooks.register_module_forward_hook(unless_hooked if hooked else self._end, with_kwargs=True),
        ]
        return everywhere + [module.register_forward_hook(self._end, with_kwargs=True) for module in hooked]

    def _begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        name = self.names.get(module)
        if name is None:
            return
        call = Call(name, module, self.stack[-1] if self.stack else None, len(self.graph.nodes))
        if args and isinstance(args[0], Tensor):
            call.input = self.value(args[0])
        self.stack.append(call)
        self.graph.calls.append(call)

    def _end(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if module not in self.names:
            return
        call = self.stack.pop()
        call.plain = len(args) == 1 and not kwargs
        call.last_node = len(self.graph.nodes)
        if isinstance(output, Tensor):
            call.output = self.value(output)

    def _described(self, things: Iterable[Any], inputs: list[Value]) -> tuple[Any, ...]:
        """These things with values in place of tensors; the values are added to `inputs`."""
        described: list[Any] = []
        for thing in things:
            kind = type(thing)
            if kind in _PLAIN_TYPES or (kind is tuple and _PLAIN_TYPES.issuperset(map(type, thing))):
                described.append(thing)
                continue
            value = self._values.get(id(thing))
            if value is not None or isinstance(thing, Tensor):
                inputs.append(value or self.value(thing))
                described.append(inputs[-1])
            elif isinstance(thing, _SEVERAL):
                described.append(self._described(thing, inputs))
            elif isinstance(thing, dict):
                described.append(dict(zip(thing, self._described(thing.values(), inputs), strict=True)))
            else:
                inputs += map(self.value, tensors_in(thing))
                described.append(thing)
        return tuple(described)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.__iter__:
            return iter(self.__torch_function__(torch.unbind, types, args, kwargs))
        if can_look_into(func):
            return self._look_into(func, args, kwargs)
        op, spelled_in_place, tells = spelling(func)
        if tells and next(tensors_in(result := func(*args, **kwargs)), None) is None:
            self.sizes_asked = self.sizes_asked or (op in _SIZES and not (self.stack and self.stack[-1].of_torch))
            return result
        inputs: list[Value] = []
        positional = self._described(args, inputs)
        named = kwargs
        if not _PLAIN_TYPES.issuperset(map(type, kwargs.values())):
            named = dict(zip(kwargs, self._described(kwargs.values(), inputs), strict=True))
        if not tells:
            result = func(*args, **kwargs)
        made = [result] if isinstance(result, Tensor) else list(tensors_in(result))
        if not made and not inputs:
            return result
        if op in _LIKE_ANOTHER:
            inputs = inputs[:1]
        in_place = is_in_place(op, spelled_in_place, kwargs)
        if in_place and not made:
            made = list(tensors_in((args, kwargs)))[:1]
        depends, known, of_masks = False, bool(inputs), True
        for value in inputs:
            depends, known = depends or value.depends_on_input, known and value.known
            of_masks = of_masks and value.of_masks >= value.depends_on_input
        # a tensor made from no other may depend on sizes or be random, and a number may come from data
        known = known and op not in _RANDOM
        if known and takes_number(op, args, kwargs):
            known = not depends and len(self.graph.nodes) not in self.untrusted
            if known:
                self.graph.trusted[len(self.graph.nodes)] = (op, *numbers_in(args, kwargs))
        outputs = [Value(tuple(t.shape), known=known, depends_on_input=depends) for t in made]
        for tensor, value in zip(made, outputs, strict=True):
            value.discrete, value.of_masks = not tensor.dtype.is_floating_point, of_masks and depends
            # what is made of a known image may still differ with its size, and rules tell
            if known and not depends:
                value.number = single_number(tensor)
                if len(self.graph.nodes) not in self.untrusted:
                    value.contents = weakref.ref(tensor)
        call = self.stack[-1] if self.stack else None
        shown = made[0] if in_place and result is None else result
        node = Node(op, positional, named, inputs, outputs, shown, call, func, self.sizes_asked)
        self.sizes_asked = self.sizes_asked or not made
        node.sealed = self._inside or (call is not None and getattr(type(call.module), "sealed", False))
        if not in_place or op == "setitem":
            node.redo = lambda *tensors: _call_on(tensors, func, args, kwargs)
        self._add(node, made, in_place)
        return result

    def _look_into(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the operations that the function is made of."""
        self._inside = True
        try:
            return inside(func, self, args, kwargs)
        finally:
            self._inside = False

    def _add(self, node: Node, made: list[Tensor], in_place: bool) -> None:
        """Let the rule of `node` describe its outputs, which are the values of the tensors it made."""
        outputs = node.outputs[:]
        self.graph.nodes.append(node)
        shared = self._rewrite_views(node, made[0]) if in_place and made else False
        with nullcontext() if self.doubts is None else self.doubts.about(node):
            node.rule = OPAQUE if shared or node.kwargs.get("out") is not None else describe(node, self.graph)
        node.result = node.redo = None
        for tensor, value in zip(made, outputs, strict=True):
            before = self._values.get(id(tensor))
            if before is not None and not in_place and any(before is given for given in node.inputs):
                # the operation returned its argument
                value.same_as = value.same_as or before
                if before.parameter is not None:
                    continue
            self.note(tensor, value)

    @cached_property
    def _stored_at(self) -> dict[int | None, list[Tensor]]:
        """Parameters and buffers by where their memory begins."""
        stored: dict[int | None, list[Tensor]] = {}
        for tensor in self.graph.tensors.values():
            stored.setdefault(memory_of(tensor), []).append(tensor)
        return stored

    def _rewrite_views(self, node: Node, written: Tensor) -> bool:
        """Whether other recorded tensors share the memory just written; if so, the node reads and makes them, too."""
        place = memory_of(written)
        if (before := self._values.get(id(written))) is not None:
            self.graph.exposed.append(before)
        if not place:
            return place is None
        others = [*self._sharing({place}), *self._stored_at.get(place, ())]
        others = [tensor for tensor in others if tensor is not written]
        for tensor in others:
            old = self.value(tensor)
            if old.parameter is None:
                new = Value(tuple(tensor.shape), depends_on_input=True)
                self.graph.exposed.append(old)
                node.inputs.append(old)
                node.outputs.append(new)
                self._values[id(tensor)] = new
        return bool(others)

    def _sharing(self, places: Collection[int | None]) -> list[Tensor]:
        """Recorded tensors that still live, and whose memory is one of these."""
        alive = [tensor for seen in self.alive.values() if (tensor := seen()) is not None]
        return [tensor for tensor in alive if memory_of(tensor) in places]

    def returned(self, output: Any) -> None:
        """Note what the model returned."""
        tensors = list(tensors_in(output))
        self.graph.results = [self.value(tensor) for tensor in tensors]
        self.graph.exposed += map(self.value, self._sharing(set(map(memory_of, tensors))))


def _call_on(tensors: Iterable[Tensor], func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The call with `tensors` in place of the first tensors among its arguments."""
    instead = iter(tensors)
    args, kwargs = map_tensors(lambda tensor: next(instead, tensor), (args, kwargs))
    return func(*args, **kwargs)


def capture(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    untrusted: Collection[int] = (),
    doubts: Doubts | None = None,
) -> tuple[Graph, Any]:
    """Run `model`, which is in eval mode, once; return the graph and the model's output.

    What is computed from parameters, buffers and Python numbers is taken for the same at every input, but not at the
    nodes that are `untrusted`, given by their places; the graph lists the numbers, so that somebody can check. What
    `doubts` tell to be otherwise at another size is not relied on.
    """
    recorder = _Recorder(model, untrusted, doubts)
    # numbers that are given to the model may differ next time
    recorder.sizes_asked = any(type(leaf) in {int, float} for leaf in tree_leaves((args, kwargs)))
    for tensor in tensors_in((args, kwargs)):
        recorder.note(tensor, Value(tuple(tensor.shape), depends_on_input=True)).of_masks = is_mask(tensor)
    handles = recorder.watch()
    try:
        with torch.no_grad(), scripted_functions_as_written(), recorder:
            output = model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
            # torch does not, and torch.compile mistakes what is left for a hook
            hooks._global_forward_hooks_with_kwargs.pop(handle.id, None)
    recorder.returned(output)
    if not recorder.graph.results:
        raise SparsityError(f"{type(model).__name__} returned a {type(output).__name__} in which no tensor was found")
    recorder.alive.clear()
    return recorder.graph, output
