"""A model and its optimiser made small in place: the user's objects stay the objects that schedulers and loops hold."""

from typing import Any

from torch import nn
from torch.optim import Optimizer

from diffsparse.compaction import Compacted
from diffsparse.compaction.adaptors import ExpandOutput, SelectInput
from diffsparse.compaction.optimizer import slice_optimizer_in_place

_OF_TORCH = frozenset(vars(nn.Module()))
_ADAPTORS = (SelectInput, ExpandOutput)


def shrink_in_place(
    model: nn.Module, small: Compacted[Any], optimizer: Optimizer | None, *, gates_stay: bool = False
) -> None:
    """Give `model` the layers of `small`, which was made from it, and `optimizer` its parameters and their state.

    Modules that keep their class stay the same objects. Parameters are new ones: a graph that is still alive holds on
    to the shapes of the old ones.
    """
    if optimizer is not None:
        slice_optimizer_in_place(unwrapped_optimizer(optimizer), model, small, gates_stay=gates_stay)
    _graft(model, small.model)


def unwrapped_optimizer(optimizer: Optimizer) -> Optimizer:
    """The optimiser inside wrappers that look like one, such as that of Accelerate."""
    inner = getattr(optimizer, "optimizer", None)
    return unwrapped_optimizer(inner) if isinstance(inner, Optimizer) else optimizer


def _is_another(before: object, after: object) -> bool:
    return _is_plain(before) and _is_plain(after) and before != after


def _is_plain(value: object) -> bool:
    """Whether it is a number, a text or a tuple or list of these, such as sizes, which compaction makes true."""
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _graft(old: nn.Module, new: nn.Module) -> None:
    """Make `old` what `new`, of the same class, is; other objects that the user put into it stay his own."""
    for key, value in vars(new).items():
        if key not in _OF_TORCH and (key not in vars(old) or _is_another(vars(old)[key], value)):
            vars(old)[key] = value
    old._parameters, old._buffers = new._parameters, new._buffers
    old._non_persistent_buffers_set = new._non_persistent_buffers_set
    for hooks in ("_forward_pre_hooks", "_forward_hooks"):
        own = {key: hook for key, hook in vars(old)[hooks].items() if not isinstance(hook, _ADAPTORS)}
        made = {key: hook for key, hook in vars(new)[hooks].items() if isinstance(hook, _ADAPTORS)}
        # the dictionary stays the same object, so that handles given out earlier still remove their hooks
        vars(old)[hooks].clear()
        vars(old)[hooks].update(own | made)
    children: dict[str, nn.Module | None] = {}
    for key, child in new._modules.items():
        mine = old._modules.get(key)
        if mine is None or child is None or type(mine) is not type(child):
            children[key] = child
        else:
            _graft(mine, child)
            children[key] = mine
    old._modules.clear()
    old._modules.update(children)
