"""A model and its optimiser made small in place: the user's objects stay the objects that schedulers and loops hold."""

from typing import Any

from torch import nn
from torch.optim import Optimizer

from diffsparse.compaction import Compacted, slice_optimizer
from diffsparse.compaction.adaptors import ExpandOutput, SelectInput

_OF_TORCH = frozenset(vars(nn.Module()))


def shrink_in_place(model: nn.Module, small: Compacted[Any], optimizer: Optimizer | None) -> None:
    """Give `model` the layers of `small`, which was made from it, and `optimizer` its parameters and their state.

    Modules that keep their class stay the same objects. Parameters are new ones: a graph that is still alive holds on to
    the shapes of the old ones.
    """
    sliced = None if optimizer is None else slice_optimizer(optimizer, model, small)
    _graft(model, small.model)
    if optimizer is not None and sliced is not None:
        _take_over(optimizer, sliced)


def _graft(old: nn.Module, new: nn.Module) -> None:
    """Make `old` what `new`, of the same class, is."""
    vars(old).update({key: value for key, value in vars(new).items() if key not in _OF_TORCH})
    old._parameters, old._buffers = new._parameters, new._buffers
    old._non_persistent_buffers_set = new._non_persistent_buffers_set
    for hooks in ("_forward_pre_hooks", "_forward_hooks"):
        made = {k: hook for k, hook in vars(new)[hooks].items() if isinstance(hook, SelectInput | ExpandOutput)}
        vars(old)[hooks].update(made)
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


def _take_over(optimizer: Optimizer, sliced: Optimizer) -> None:
    """Give `optimizer` the parameters and state of `sliced`, whose groups are those that still have parameters."""
    left = iter(sliced.param_groups)
    following = next(left, None)
    for group in optimizer.param_groups:
        same = following is not None and all(following.get(k) == v for k, v in group.items() if k != "params")
        group["params"] = following["params"] if same and following is not None else []
        following = next(left, None) if same else following
    optimizer.state.clear()
    optimizer.state.update(sliced.state)
