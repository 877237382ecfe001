"""What objects refer to: attributes, items, and what functions hold in closures, defaults and partial arguments."""

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import BuiltinMethodType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

ATOMS = frozenset({bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, type, range, slice})
"""Types whose instances refer to nothing."""
WEAK: tuple[type, ...] = (weakref.ReferenceType, *weakref.ProxyTypes)
CODE: tuple[type, ...] = (FunctionType, MethodType, BuiltinMethodType, partial, *WEAK)
"""Types that refer to objects in ways that a copy does not follow."""
_ITEMS = (list, tuple, set, frozenset, deque)


def parts(thing: Any) -> Iterable[Any]:
    """What `thing` refers to directly."""
    kind = type(thing)
    if kind in ATOMS or issubclass(kind, type | ModuleType | Tensor):
        return ()
    if issubclass(kind, CODE):
        return code_parts(thing)
    own = vars(thing).values() if hasattr(thing, "__dict__") else ()
    if isinstance(thing, dict):
        return [*thing.keys(), *thing.values(), *own]
    return [*thing, *own] if isinstance(thing, _ITEMS) else own


def code_parts(thing: Any) -> Iterable[Any]:
    """What a function, method, partial or weak reference refers to."""
    if isinstance(thing, WEAK):
        return [referent(thing)]
    if isinstance(thing, partial):
        return [thing.func, *thing.args, *thing.keywords.values(), *vars(thing).values()]
    if isinstance(thing, FunctionType):
        held = [content(cell) for cell in thing.__closure__ or ()]
        return [*held, *(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values(), *vars(thing).values()]
    # of a method; functions of C have a module or nothing there
    return [thing.__self__, *([thing.__func__] if isinstance(thing, MethodType) else [])]


def content(cell: CellType) -> Any:
    """What a closure's cell holds; None if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def referent(weak: Any) -> Any:
    """What a weak reference or proxy points to; None if that is gone."""
    try:
        # a proxy passes every attribute on, and methods know whose they are
        return weak() if isinstance(weak, weakref.ReferenceType) else weak.__repr__.__self__
    except ReferenceError:
        return None


def reachable(starts: Iterable[Any], into: Callable[[Any], bool] = lambda thing: True) -> Iterator[Any]:
    """Every object that these lead to, themselves included, once; parts are looked at of those that `into` says.

    Example:
        >>> layer = [1]
        >>> layer in reachable([partial(print, layer)])
        True
    """
    seen: dict[int, Any] = {}
    left = list(starts)
    while left:
        thing = left.pop()
        if type(thing) in ATOMS or id(thing) in seen:
            continue
        # kept alive, because its `id` may be used again
        seen[id(thing)] = thing
        yield thing
        if into(thing):
            left += parts(thing)
