"""A faster `copy.deepcopy` for module trees."""

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

_ATOMS = frozenset({bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device})
_COLLECTIONS = frozenset({OrderedDict, dict, set, list})
# attributes that torch gives every module
_ITS_OWN = frozenset(vars(nn.Module()))


class Duplicate:
    """Makes the same copies as `copy.deepcopy`; copying something twice gives one copy.

    A module is a dozen empty dictionaries and a few tensors, which are slow to copy one by one. They are created here,
    and everything else is left to `deepcopy`.

    Example:
        >>> duplicate = Duplicate()
        >>> model = nn.Linear(2, 1)
        >>> duplicate(model) is duplicate(model), duplicate(model) is model
        (True, False)
    """

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}
        """The memo of `deepcopy`: copies by the `id` of their originals, which must outlive this object."""
        self._plain_classes: dict[type, bool] = {}

    def __call__(self, thing: Any) -> Any:
        kind = type(thing)
        if kind in _ATOMS or (kind is tuple and _ATOMS.issuperset(map(type, thing))):
            return thing
        key = id(thing)
        if key in self.made:
            return self.made[key]
        if kind is nn.Parameter:
            new = nn.Parameter(thing.clone(), thing.requires_grad)
        elif kind is Tensor and _owns_its_memory(thing):
            new = thing.clone()
        elif kind in _COLLECTIONS and not thing:
            new = kind()
        elif kind is OrderedDict or kind is dict:
            return self._dictionary(thing, kind)
        elif isinstance(thing, nn.Module) and self._is_plain(kind):
            return self._module(thing)
        else:
            return copy.deepcopy(thing, self.made)
        self.made[key] = new
        return new

    def _dictionary(self, thing: dict[Any, Any], kind: type[dict[Any, Any]]) -> Any:
        new = self.made[id(thing)] = kind()
        for key, value in thing.items():
            new[key if type(key) is str else self(key)] = self(value)
        return new

    def _module(self, module: nn.Module) -> nn.Module:
        state: Any = module.__getstate__()  # type: ignore[no-untyped-call]
        if not isinstance(state, dict):
            return copy.deepcopy(module, self.made)
        new: nn.Module = type(module).__new__(type(module))
        self.made[id(module)] = new
        # most attributes of torch's own are empty dictionaries
        made = {key: type(value)() if key in _ITS_OWN and not value else self(value) for key, value in state.items()}
        new.__setstate__(made)  # type: ignore[no-untyped-call]
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
