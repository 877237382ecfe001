"""A faster `copy.deepcopy` for module trees, which also follows functions into what they hold."""

import copy
import copyreg
from collections import OrderedDict
from functools import cached_property
from types import BuiltinMethodType, CellType, FunctionType, MethodType
from typing import Any, TypeVar, cast
from weakref import ReferenceType, WeakKeyDictionary, WeakValueDictionary, proxy

import torch
from torch import Tensor, nn

from diffsparse.module_tree import OF_TORCH
from diffsparse.references import ATOMS, CODE, content, parts, reachable, referent

Model = TypeVar("Model", bound=nn.Module)

_COLLECTIONS = frozenset({OrderedDict, dict, set, list})
_WEAK_DICTIONARIES = (WeakKeyDictionary, WeakValueDictionary)


def duplicate(model: Model) -> Model:
    """A copy of `model`, as `Duplicate` makes it.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> torch.equal(duplicate(model).weight, model.weight)
        True
    """
    return cast(Model, Duplicate()(model))


class Duplicate:
    """Makes the same copies as `copy.deepcopy`; copying something twice gives one copy.

    A module is a dozen empty dictionaries and a few tensors, which are slow to copy one by one. They are created here.
    Beyond that it differs in three ways: functions, methods and weak references that lead to something that is copied
    are copied and lead to the copy; tensors with a history are copied without it; and what cannot be copied, such as a
    lock, is shared.

    Args:
        root: what is to be copied, if parts of it are copied before.

    Example:
        >>> duplicate = Duplicate()
        >>> model = nn.Linear(2, 1)
        >>> duplicate(model) is duplicate(model), duplicate(model) is model
        (True, False)
    """

    def __init__(self, root: Any = None) -> None:
        self.made: dict[int, Any] = {}
        """The memo of `deepcopy`: copies by the `id` of their originals, which must outlive this object."""
        self.saw_code = False
        """Whether there were functions or objects of other classes than PyTorch's and Python's own."""
        self._root = root
        self._alive: list[Any] = []
        self._plain_classes: dict[type, bool] = {}
        self._outside: set[int] = set()

    def __call__(self, thing: Any) -> Any:
        kind = type(thing)
        if kind in ATOMS or (kind is tuple and ATOMS.issuperset(map(type, thing))):
            return thing
        key = id(thing)
        if key in self.made:
            return self.made[key]
        if self._root is None:
            self._root = thing
        if kind is nn.Parameter:
            new = nn.Parameter(thing.clone(), thing.requires_grad)
        elif kind is Tensor and _owns_its_memory(thing):
            new = thing.clone()
        elif kind in _COLLECTIONS and not thing:
            new = kind()
        elif kind is OrderedDict or kind is dict:
            return self._dictionary(thing, kind())
        elif issubclass(kind, nn.Module) and self._is_plain(kind):
            return self._module(thing)
        else:
            return self._other(thing)
        self.made[key] = new
        return new

    def _dictionary(self, thing: Any, new: Any) -> Any:
        self.made[id(thing)] = new
        for key, value in list(thing.items()):
            new[key if type(key) is str else self(key)] = self(value)
        return new

    def _module(self, module: nn.Module) -> nn.Module:
        state: Any = module.__getstate__()  # type: ignore[no-untyped-call]
        if not isinstance(state, dict):
            return cast(nn.Module, self._by_deepcopy(module))
        new: nn.Module = type(module).__new__(type(module))
        self.made[id(module)] = new
        # most attributes of torch's own are empty dictionaries
        made = {key: type(value)() if key in OF_TORCH and not value else self(value) for key, value in state.items()}
        new.__setstate__(made)  # type: ignore[no-untyped-call]
        return new

    def _other(self, thing: Any) -> Any:
        """A copy of what is rare in models."""
        if issubclass(type(thing), Tensor):
            self._alive.append(plain := thing if thing.is_leaf else thing.detach())
            return self.made.setdefault(id(thing), copy.deepcopy(plain, self.made))
        if isinstance(thing, CODE):
            self.saw_code = True
            return self._code(thing) if self._leads_inside(thing) else thing
        try:
            new = self._collection_or_object(thing)
        except Exception:
            # a module that is shared would be cut with the copy
            if isinstance(thing, nn.Module):
                raise
            new = thing
        self.made[id(thing)] = new
        return new

    def _collection_or_object(self, thing: Any) -> Any:
        kind = type(thing)
        if kind is list:
            new = self.made[id(thing)] = []
            new.extend(map(self, thing))
            return new
        if kind in (tuple, set, frozenset):
            return kind(map(self, thing))
        if isinstance(thing, _WEAK_DICTIONARIES):
            return self._dictionary(thing, kind())
        self.saw_code = True
        if hasattr(kind, "__deepcopy__") or kind in copyreg.dispatch_table or isinstance(thing, nn.Module):
            return self._by_deepcopy(thing)
        return self._by_its_state(thing)

    def _by_deepcopy(self, thing: Any) -> Any:
        """Let the class say how; it is given our copies of what `deepcopy` would share or refuse."""
        for inner in list(reachable(parts(thing), lambda each: not isinstance(each, (nn.Module, *CODE)))):
            if isinstance(inner, CODE) or (isinstance(inner, Tensor) and not inner.is_leaf):
                self(inner)
        return copy.deepcopy(thing, self.made)

    def _by_its_state(self, thing: Any) -> Any:
        """What `deepcopy` does with an object of any class, with this object in its place."""
        how = thing.__reduce_ex__(4)
        if isinstance(how, str):
            return thing
        make, arguments, state, items, pairs = (*how, None, None, None)[:5]
        self._alive.append(how)
        new = self.made[id(thing)] = make(*map(self, arguments))
        if state is not None and hasattr(new, "__setstate__"):
            new.__setstate__(self(state))
        elif state is not None:
            named, slots = state if isinstance(state, tuple) else (state, None)
            if named:
                vars(new).update({key: self(value) for key, value in named.items()})
            for key, value in (slots or {}).items():
                object.__setattr__(new, key, self(value))
        for item in items or ():
            new.append(self(item))
        for key, value in pairs or ():
            new[self(key)] = self(value)
        return new

    @cached_property
    def _inside(self) -> set[int]:
        """Everything that is copied for other reasons than that a function leads to it."""
        return {id(thing) for thing in reachable([self._root], lambda thing: not isinstance(thing, CODE))}

    def _leads_inside(self, thing: Any) -> bool:
        seen = set()
        for each in reachable([thing], lambda each: id(each) not in self._outside):
            if id(each) in self._inside and not isinstance(each, CODE):
                return True
            seen.add(id(each))
        self._alive.append(thing)
        self._outside |= seen
        return False

    def _followed(self, thing: Any) -> Any:
        """A copy of what leads to something that is copied, and everything else as it is."""
        return self(thing) if self._leads_inside(thing) else thing

    def _code(self, thing: Any) -> Any:
        """A copy of code that leads inside."""
        if isinstance(thing, FunctionType):
            return self._function(thing)
        if isinstance(thing, MethodType):
            new: Any = MethodType(self._followed(thing.__func__), owner := self._followed(thing.__self__))
            if type(owner) is not type(thing.__self__):
                # an ordinary layer in place of a gated one does it in its own way
                new = getattr(owner, thing.__name__, new)
        elif isinstance(thing, BuiltinMethodType):
            new = getattr(self(thing.__self__), thing.__name__)
        elif isinstance(thing, ReferenceType):
            new = ReferenceType(self(referent(thing)))
        elif hasattr(thing, "func"):
            new = self._by_its_state(thing)
        else:
            new = proxy(self(referent(thing)))
        return self.made.setdefault(id(thing), new)

    def _function(self, function: FunctionType) -> FunctionType:
        cells = function.__closure__ or ()
        # a cell that leads elsewhere stays the same, because others may write to it
        made = tuple(CellType() if self._leads_inside(content(cell)) else cell for cell in cells)
        made = tuple(self.made.setdefault(id(cell), new) for cell, new in zip(cells, made, strict=True))
        new = FunctionType(function.__code__, function.__globals__, function.__name__, None, made or None)
        self.made[id(function)] = new
        for cell, ours in zip(cells, made, strict=True):
            if ours is not cell:
                ours.cell_contents = self._followed(content(cell))
        new.__defaults__ = function.__defaults__ and tuple(map(self._followed, function.__defaults__))
        named = function.__kwdefaults__
        new.__kwdefaults__ = named and {key: self._followed(value) for key, value in named.items()}
        vars(new).update({key: self._followed(value) for key, value in vars(function).items()})
        new.__qualname__, new.__module__, new.__doc__ = function.__qualname__, function.__module__, function.__doc__
        new.__annotations__ = function.__annotations__
        return new

    def _is_plain(self, kind: type) -> bool:
        """Whether the class does not define how it is copied."""
        if kind not in self._plain_classes:
            own = any(hasattr(kind, name) for name in ("__deepcopy__", "__getnewargs__", "__getnewargs_ex__"))
            reduced = any(getattr(kind, name) is not getattr(object, name) for name in ("__reduce_ex__", "__reduce__"))
            self._plain_classes[kind] = not (own or reduced or issubclass(kind, list | dict))
        return self._plain_classes[kind]


def _owns_its_memory(tensor: Tensor) -> bool:
    plain = tensor.layout == torch.strided and not tensor.requires_grad and not tensor.is_quantized
    return plain and not tensor._is_view() and not vars(tensor)
