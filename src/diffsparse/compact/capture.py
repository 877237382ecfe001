"""Record what a model does by running it once."""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    _global_forward_hooks_with_kwargs,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from diffsparse.compact.graph import Call, Graph, Node, Value
from diffsparse.compact.rules import OPAQUE, describe
from diffsparse.compact.rules.pointwise import takes_number
from diffsparse.errors import SparsityError

_RENAMED = {
    "radd": "add",
    "iadd": "add",
    "imul": "mul",
    "rmul": "mul",
    "multiply": "mul",
    "isub": "sub",
    "subtract": "sub",
    "truediv": "div",
    "itruediv": "div",
    "divide": "div",
    "concat": "cat",
    "concatenate": "cat",
    "T.__get__": "transpose_all",
}


# Asked for first: most arguments are such, and asking for the type of a tensor is slow.
_PLAIN = (int, float, bool, str, type(None))


def tensors_in(thing: Any) -> Iterator[Tensor]:
    """Every tensor inside nested collections, dataclasses and plain objects."""
    if isinstance(thing, _PLAIN):
        return
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, dict):
        for item in thing.values():
            yield from tensors_in(item)
    elif isinstance(thing, list | tuple | set | frozenset):
        for item in thing:
            yield from tensors_in(item)
    elif is_dataclass(thing) and not isinstance(thing, type):
        for entry in fields(thing):
            yield from tensors_in(getattr(thing, entry.name))
    elif hasattr(thing, "__dict__") and not callable(thing):
        for item in vars(thing).values():
            yield from tensors_in(item)


def canonical(func: Callable[..., Any]) -> str:
    """One name for `torch.relu`, `F.relu`, `Tensor.relu_` and friends."""
    name: str = getattr(func, "__name__", "unknown")
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", "unknown") + ".__get__"
        return _RENAMED.get(name, name)
    name = name.strip("_")
    return _RENAMED.get(name, name)


@lru_cache(maxsize=1024)
def _spelling(func: Callable[..., Any]) -> tuple[str, bool, bool]:
    """The canonical name, whether it says that the first operand is written to, and whether it may only tell a size."""
    name: str = getattr(func, "__name__", "")
    augmented = name.startswith("__i") and name.endswith("__") and name not in {"__invert__", "__index__", "__int__"}
    single = name.endswith("_") and not name.endswith("__")
    op = canonical(func)
    return op, single or augmented or name == "__setitem__", op in _METADATA or op.endswith(".__get__")


def _is_in_place(op: str, spelled: bool, kwargs: dict[str, Any]) -> bool:
    if not kwargs:
        return spelled
    if "dropout" in op and kwargs.get("training") is False:
        return False
    return spelled or kwargs.get("inplace") is True or "out" in kwargs


class _Recorder(TorchFunctionMode):
    """Turns every torch call into a node."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names = {module: name for name, module in model.named_modules()}
        self.graph = Graph([], [], [], dict(_named_tensors(self.names)))
        self.stack: list[Call] = []
        self._values: dict[int, Value] = {}
        # a tensor that dies takes its entry along, so that no `id` is taken for another's
        self.alive: dict[int, weakref.ref[Tensor]] = {}
        self._parameters = {id(tensor): name for name, tensor in self.graph.tensors.items()}

    def value(self, tensor: Tensor, new: Value | None = None) -> Value:
        """The value of `tensor`; of a tensor never seen before nothing is known."""
        key = id(tensor)
        if new is None:
            seen = self._values.get(key)
            if seen is not None:
                return seen
            new = self._unseen(tensor)
        if key not in self.alive:
            self.alive[key] = weakref.ref(tensor, lambda _: self._forget(key))
        self._values[key] = new
        return new

    def _unseen(self, tensor: Tensor) -> Value:
        name = self._parameters.get(id(tensor))
        if name is None:
            return Value(tuple(tensor.shape), touched=True)
        return Value(tuple(tensor.shape), parameter=name, known=True, number=_number(tensor, True))

    def watch(self) -> list[RemovableHandle]:
        """Be told of every call of a module."""
        # hooks for all modules are quicker than one on each, but run in front of those that a module has of its own
        hooked = {module for module in self.names if module._forward_hooks}

        def end(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if module in self.names and module not in hooked:
                self._end(module, args, kwargs, output)

        everywhere = [
            register_module_forward_pre_hook(self._begin),
            register_module_forward_hook(end, with_kwargs=True),
        ]
        return everywhere + [module.register_forward_hook(self._end, with_kwargs=True) for module in hooked]

    def _begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        name = self.names.get(module)
        if name is None:
            return
        call = Call(name, module, self.stack[-1] if self.stack else None, first_node=len(self.graph.nodes))
        if args and isinstance(args[0], Tensor):
            call.input = self.value(args[0])
        self.stack.append(call)
        self.graph.calls.append(call)

    def _end(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        call = self.stack.pop()
        call.plain = len(args) == 1 and not kwargs
        call.last_node = len(self.graph.nodes)
        if isinstance(output, Tensor):
            call.output = self.value(output)
            if call.output.known and call.output.touched and output.dim() > 0:
                call.data = output.detach()[:1].clone()

    def _forget(self, key: int) -> None:
        del self.alive[key], self._values[key]

    def _described(self, thing: Any, given: list[Tensor]) -> Any:
        """`thing` with values in place of tensors, which are added to `given`."""
        kind = type(thing)
        if kind in _PLAIN:
            return thing
        if isinstance(thing, Tensor):
            given.append(thing)
            return self.value(thing)
        if isinstance(thing, list | tuple):
            return tuple([item if type(item) in _PLAIN else self._described(item, given) for item in thing])
        if isinstance(thing, dict):
            return {key: self._described(item, given) for key, item in thing.items()}
        given += tensors_in(thing)
        return thing

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.__iter__:
            return iter(self.__torch_function__(torch.unbind, types, args, kwargs))
        op, spelled_in_place, tells = _spelling(func)
        given: list[Tensor] = []
        described: Any = None if tells else (self._described(args, given), self._described(kwargs, given))
        result = func(*args, **kwargs)
        made = [result] if isinstance(result, Tensor) else list(tensors_in(result))
        if not made and (tells or not given):
            return result
        described = described or (self._described(args, given), self._described(kwargs, given))
        in_place = _is_in_place(op, spelled_in_place, kwargs)
        if in_place and not made:
            made = given[:1]
        inputs = [self.value(tensor) for tensor in given]
        touched, known = False, bool(inputs)
        for value in inputs:
            touched, known = touched or value.touched, known and value.known
        # what is made from nothing may be made from sizes, or at random; a number may come from data
        known = known and op not in _RANDOM and not takes_number(op, args, kwargs)
        outputs = [Value(tuple(t.shape), known=known, touched=touched, number=_number(t, known)) for t in made]
        node = Node(op, described[0], described[1], inputs, outputs, result, self.stack[-1] if self.stack else None)
        if args and isinstance(args[0], Tensor) and not in_place:
            node.redo = lambda first: func(first, *args[1:], **kwargs)
        self.graph.nodes.append(node)
        shared = self._rewrite_views(node, made[0]) if in_place and made else False
        node.rule = OPAQUE if shared or "out" in kwargs else describe(node, self.graph)
        node.result = node.redo = None
        for tensor, value in zip(made, outputs[: len(made)], strict=True):
            if not in_place and any(tensor is other for other in given):
                # the operation handed its argument back
                value.same_as = value.same_as or self._values[id(tensor)]
            self.value(tensor, value)
        return result

    def _rewrite_views(self, node: Node, written: Tensor) -> bool:
        """Whether other recorded tensors lie in the memory just written; if so, the node reads and makes them, too."""
        try:
            place = written.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):
            return True
        alive = [*self.graph.tensors.values(), *(t for seen in self.alive.values() if (t := seen()) is not None)]
        others = [t for t in alive if t is not written and t.untyped_storage().data_ptr() == place and place]
        for tensor in {id(t): t for t in others}.values():
            old = self.value(tensor)
            if old.parameter is None:
                new = Value(tuple(tensor.shape), touched=True)
                node.inputs.append(old)
                node.outputs.append(new)
                self._values[id(tensor)] = new
        return bool(others)


# Calls that tell Python of a tensor without its data; whatever else returns no tensor hands data over.
_METADATA = {
    *(
        "size",
        "dim",
        "ndimension",
        "numel",
        "nelement",
        "len",
        "stride",
        "storage_offset",
        "element_size",
        "get_device",
    ),
    *("is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_tensor", "is_inference", "is_shared"),
    *("type", "data_ptr", "has_names", "untyped_storage", "hash", "repr", "format", "is_same_size", "is_pinned"),
    *("get_device", "result_type"),
}


# Calls whose result is another one each time.
_RANDOM = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "bernoulli", "multinomial", "normal"}


def _number(tensor: Tensor, known: bool) -> float | None:
    if not known or tensor.numel() != 1 or not tensor.is_floating_point():
        return None
    return float(tensor.detach())


def _named_tensors(names: dict[nn.Module, str]) -> Iterator[tuple[str, Tensor]]:
    """Parameters, then buffers, of these modules; what is held twice goes by its first name."""
    seen = set()
    for place in ("_parameters", "_buffers"):
        for module, name in names.items():
            for key, tensor in getattr(module, place).items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{name}.{key}" if name else key, tensor


def capture(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Graph, Any]:
    """Run `model`, which is in eval mode, once; return the graph and the model's output."""
    recorder = _Recorder(model)
    for tensor in tensors_in((args, kwargs)):
        recorder.value(tensor, Value(tuple(tensor.shape), touched=True))
    handles = recorder.watch()
    try:
        with torch.no_grad(), recorder:
            output = model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
            # torch forgets to, and torch.compile takes what is left for a hook
            _global_forward_hooks_with_kwargs.pop(handle.id, None)
    recorder.graph.results = [recorder.value(tensor) for tensor in tensors_in(output)]
    if not recorder.graph.results:
        raise SparsityError(f"{type(model).__name__} returned a {type(output).__name__} in which no tensor was found")
    recorder.alive.clear()
    return recorder.graph, output
