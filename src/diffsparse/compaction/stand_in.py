"""What stands in the place of a module that is gone, and still answers for what the user's code reads of it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.example import map_tensors
from diffsparse.module_tree import HOOKS, OF_TORCH

_FORMER = "_former"


class StandIn(nn.Module):
    """Base of modules that replace another one: attributes that it lacks are those of the former module.

    Tensors of the former module have their shape, dtype and device, but no memory, and hold NaN. They are in no state
    dict, and no parameters of the model.

    Example:
        >>> gone = StandIn()
        >>> gone.stand_for(nn.Conv2d(3, 8, 3, stride=2))
        >>> gone.stride, gone.weight.shape, gone.weight.untyped_storage().nbytes(), list(gone.state_dict())
        ((2, 2), torch.Size([8, 3, 3, 3]), 4, [])
    """

    def stand_for(self, former: nn.Module) -> None:
        """Answer for `former` from now on."""
        # not by setattr, which would make it a child
        vars(self)[_FORMER] = _shell(former, {})

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # how the former module is copied or pickled is not how this one is
            if _FORMER not in vars(self) or name.startswith("__"):
                raise
            return getattr(vars(self)[_FORMER], name)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "StandIn":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        former: nn.Module | None = vars(self).get(_FORMER)
        for module in former.modules() if former is not None else ():
            for tensors in (module._parameters, module._buffers):
                # one entry each, because a change of dtype would give every entry memory
                held = {key: tensor for key, tensor in tensors.items() if tensor is not None}
                tensors |= {key: fn(tensor.as_strided((), ())).expand(tensor.shape) for key, tensor in held.items()}
        return self


def become(module: nn.Module, new: nn.Module) -> None:
    """Make `module` what `new` is. It stays the same object, so that lists, closures and hooks that hold it see it."""
    if isinstance(new, StandIn) and _FORMER not in vars(new):
        new.stand_for(module)
    vars(module).clear()
    vars(module).update(vars(new))
    module.__class__ = type(new)


def _shell(module: nn.Module, made: dict[nn.Module, nn.Module]) -> nn.Module:
    """A module of the same class with the same attributes and children, without hooks and without numbers."""
    if module in made:
        return made[module]
    new = made[module] = object.__new__(type(module))
    for key, value in vars(module).items():
        if key in HOOKS and isinstance(value, dict):
            value = type(value)()
        elif key not in OF_TORCH or key in {"_parameters", "_buffers"}:
            value = map_tensors(_without_memory, value)
        vars(new)[key] = value
    children = module._modules.items()
    vars(new)["_modules"] = {key: None if child is None else _shell(child, made) for key, child in children}
    return new


def _without_memory(tensor: Tensor) -> Tensor:
    # NaN, because nobody should compute with it
    number = float("nan") if tensor.is_floating_point() or tensor.is_complex() else 0
    return torch.full((), number, dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
