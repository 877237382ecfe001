"""A model and its optimiser made small in place: the user's objects stay the objects that schedulers and loops hold."""

from typing import Any

from torch import nn
from torch.optim import Optimizer

from diffsparse.compaction import Compacted
from diffsparse.compaction.adaptors import ExpandOutput, SelectInput
from diffsparse.compaction.apply import PLAN
from diffsparse.compaction.optimizer import slice_optimizer_in_place
from diffsparse.compaction.rules import true_attributes
from diffsparse.gates import GatedModule

_OF_TORCH = frozenset(vars(nn.Module()))
_ADAPTORS = (SelectInput, ExpandOutput)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_BASES = (nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict)


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


def _is_layer(module: nn.Module) -> bool:
    """Whether it is a layer of PyTorch or of this package, or a subclass: its attributes are sizes and options."""
    kinds = (kind for kind in type(module).__mro__ if kind not in _BASES)
    return any(kind.__module__.startswith(("torch.nn.modules", "diffsparse.")) for kind in kinds)


def _take_hooks(gated: nn.Module, ordinary: nn.Module) -> None:
    """Give the ordinary form the hooks of the gated one, not copies of them, beside its adaptors."""
    for hooks in (key for key, value in vars(gated).items() if "hook" in key and isinstance(value, dict)):
        made = {k: hook for k, hook in vars(ordinary)[hooks].items() if isinstance(hook, _ADAPTORS)}
        own = {k: hook for k, hook in vars(gated)[hooks].items() if not isinstance(hook, _ADAPTORS)}
        vars(ordinary)[hooks] = vars(gated)[hooks]
        vars(ordinary)[hooks].clear()
        vars(ordinary)[hooks].update(own | made)


def _graft(old: nn.Module, new: nn.Module) -> None:
    """Make `old` what `new`, of the same class, is; whatever else the user put into it stays as it is."""
    sizes = vars(new) if _is_layer(new) else {PLAN, *true_attributes(new)}
    for key, value in vars(new).items():
        if key not in _OF_TORCH and (key not in vars(old) or key in sizes):
            vars(old)[key] = value
    old._parameters, old._buffers = new._parameters, new._buffers
    old._non_persistent_buffers_set = new._non_persistent_buffers_set
    for hooks in _HOOKS:
        own = {key: hook for key, hook in vars(old)[hooks].items() if not isinstance(hook, _ADAPTORS)}
        made = {key: hook for key, hook in vars(new)[hooks].items() if isinstance(hook, _ADAPTORS)}
        # the dictionary stays the same object, so that handles given out earlier still remove their hooks
        vars(old)[hooks].clear()
        vars(old)[hooks].update(own | made)
    children: dict[str, nn.Module | None] = {}
    for key, child in new._modules.items():
        mine = old._modules.get(key)
        if mine is None or child is None or type(mine) is not type(child):
            if isinstance(mine, GatedModule) and child is not None:
                _take_hooks(mine, child)
            children[key] = child
        else:
            _graft(mine, child)
            children[key] = mine
    old._modules.clear()
    old._modules.update(children)
