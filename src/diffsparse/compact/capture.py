"""Record what a model does by running it once."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

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
_PLAIN = (int, float, str, type(None))


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


def _is_in_place(func: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    name: str = getattr(func, "__name__", "")
    augmented = name.startswith("__i") and name.endswith("__") and name not in {"__invert__", "__index__", "__int__"}
    if "dropout" in name and kwargs.get("training") is False:
        return False
    single = name.endswith("_") and not name.endswith("__")
    return single or augmented or name == "__setitem__" or kwargs.get("inplace") is True or "out" in kwargs


class _Recorder(TorchFunctionMode):
    """Turns every torch call into a node."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.graph = Graph([], [], [], dict(_named_tensors(model)))
        self.stack: list[Call] = []
        self._values: dict[int, Value] = {}
        self._alive: list[Tensor] = []
        for name, tensor in self.graph.tensors.items():
            self.value(tensor, Value(tuple(tensor.shape), parameter=name, known=True, number=_number(tensor, True)))

    def value(self, tensor: Tensor, new: Value | None = None) -> Value:
        """The value of `tensor`; of a tensor never seen before nothing is known."""
        if new is not None or id(tensor) not in self._values:
            self._values[id(tensor)] = new or Value(tuple(tensor.shape), touched=True)
            self._alive.append(tensor)
        return self._values[id(tensor)]

    def _replace(self, thing: Any) -> Any:
        if isinstance(thing, _PLAIN):
            return thing
        if isinstance(thing, Tensor):
            return self.value(thing)
        if isinstance(thing, list | tuple):
            return tuple(self._replace(item) for item in thing)
        if isinstance(thing, dict):
            return {key: self._replace(item) for key, item in thing.items()}
        return thing

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.__iter__:
            return iter(self.__torch_function__(torch.unbind, types, args, kwargs))
        given = list(tensors_in((args, kwargs)))
        inputs = [self.value(tensor) for tensor in given]
        described = self._replace(args), self._replace(kwargs)
        result = func(*args, **kwargs)
        in_place = _is_in_place(func, kwargs)
        made = list(tensors_in(result))
        if in_place and not made:
            made = given[:1]
        op = canonical(func)
        if not made and (not given or op in _METADATA or op.endswith(".__get__")):
            return result
        touched = any(value.touched for value in inputs)
        # what is made from nothing may be made from sizes, or at random; a number may come from data
        known = (
            bool(inputs) and all(v.known for v in inputs) and op not in _RANDOM and not takes_number(op, args, kwargs)
        )
        outputs = [Value(tuple(t.shape), known=known, touched=touched, number=_number(t, known)) for t in made]
        node = Node(op, *described, inputs, outputs, result, self.stack[-1] if self.stack else None)
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
        others = [t for t in self._alive if t is not written and t.untyped_storage().data_ptr() == place and place]
        for tensor in {id(t): t for t in others}.values():
            old = self._values[id(tensor)]
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


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def capture(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Graph, Any]:
    """Run `model` once in eval mode; return the graph and the model's output."""
    recorder = _Recorder(model)
    for tensor in tensors_in((args, kwargs)):
        recorder.value(tensor, Value(tuple(tensor.shape), touched=True))
    handles = []
    for name, module in model.named_modules():
        handles += _watch(recorder, name, module)
    try:
        with torch.no_grad(), recorder:
            output = model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    recorder.graph.results = [recorder.value(tensor) for tensor in tensors_in(output)]
    if not recorder.graph.results:
        raise SparsityError(f"{type(model).__name__} returned a {type(output).__name__} in which no tensor was found")
    return recorder.graph, output


def _watch(recorder: _Recorder, name: str, module: nn.Module) -> list[Any]:
    def began(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        parent = recorder.stack[-1] if recorder.stack else None
        call = Call(name, module, parent, first_node=len(recorder.graph.nodes), plain=len(args) == 1 and not kwargs)
        if args and isinstance(args[0], Tensor):
            call.input = recorder.value(args[0])
        recorder.stack.append(call)
        recorder.graph.calls.append(call)

    def ended(_module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        call = recorder.stack.pop()
        call.last_node = len(recorder.graph.nodes)
        if isinstance(output, Tensor):
            call.output = recorder.value(output)
            if call.output.known and call.output.touched and output.dim() > 0:
                call.data = output.detach()[:1].clone()

    return [
        module.register_forward_pre_hook(began, with_kwargs=True, prepend=True),
        module.register_forward_hook(ended, with_kwargs=True),
    ]
