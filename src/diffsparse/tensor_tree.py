"""Tensors inside nested collections."""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

# Checked first: most things are one of these, and checks for tensors are slow.
_PLAIN = (int, float, bool, str, type(None))


def tensors_in(thing: Any) -> Iterator[Tensor]:
    """Every tensor inside nested collections, dataclasses and plain objects."""
    if isinstance(thing, _PLAIN):
        return
    if isinstance(thing, Tensor):
        yield thing
        return
    items: Iterable[Any] = ()
    if isinstance(thing, dict):
        items = thing.values()
    elif isinstance(thing, list | tuple | set | frozenset):
        items = thing
    elif is_dataclass(thing) and not isinstance(thing, type):
        items = (getattr(thing, entry.name) for entry in fields(thing))
    elif hasattr(thing, "__dict__") and not callable(thing):
        items = vars(thing).values()
    for item in items:
        yield from tensors_in(item)


def map_tensors(change: Callable[[Tensor], Tensor], thing: Any) -> Any:
    """`thing` with each tensor in nested tuples, lists and dictionaries changed; collections keep their types.

    Example:
        >>> import torch
        >>> map_tensors(torch.numel, {"x": [torch.zeros(3), "a"]})
        {'x': [3, 'a']}
    """
    if isinstance(thing, Tensor):
        return change(thing)
    if isinstance(thing, dict):
        changed = copy.copy(thing)
        changed.update((key, map_tensors(change, item)) for key, item in thing.items())
        return changed
    if isinstance(thing, tuple | list):
        items = [map_tensors(change, item) for item in thing]
        return type(thing)(*items) if hasattr(thing, "_fields") else type(thing)(items)
    return thing
