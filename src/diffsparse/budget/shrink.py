"""A model and its optimiser made small in place: the user's objects stay the objects that schedulers and loops hold."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from diffsparse.compaction import Compacted, Plan, apply_plan
from diffsparse.compaction.actions import SetSizes
from diffsparse.compaction.adaptors import ADAPTOR_HOOKS, PassOn
from diffsparse.compaction.apply import PLAN
from diffsparse.compaction.edit import ModelEdit
from diffsparse.compaction.optimizer import check_can_be_sliced, slice_optimizers_in_place
from diffsparse.compaction.rules import true_attributes
from diffsparse.compaction.stand_in import become
from diffsparse.errors import SparsityError
from diffsparse.example import Example
from diffsparse.gates import GatedModule
from diffsparse.module_tree import HOOKS, OF_TORCH, runs_in_order

_BASES = (nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict)


def shrink_in_place(
    model: nn.Module, small: Compacted[Any], optimizers: Sequence[Optimizer] = (), *, gates_stay: bool = False
) -> None:
    """Give `model` the layers of `small`, which was made from it, and `optimizers` its parameters and their state.

    Modules that keep their class stay the same objects. Parameters are new ones: a graph that is still alive holds on
    to the shapes of the old ones.
    """
    slice_optimizers_in_place(map(unwrapped_optimizer, optimizers), model, small, gates_stay=gates_stay)
    _graft(model, small.model)
    edit = ModelEdit(model)
    for name, action in small.plan.layers.items():
        if isinstance(action, SetSizes):
            action.apply(edit, name)


def replayed(model: nn.Module, plan: Plan, example: Example) -> Compacted[nn.Module]:
    """What `compact` returned when it made this plan for `model`."""
    small = apply_plan(model, plan)
    return Compacted(model=small, plan=plan, max_difference=None, original=model, example=example)


def given_optimizers(given: Iterable[Any]) -> tuple[Optimizer, ...]:
    """Optimisers, each once, from optimisers and collections of them; raises for anything else, and for none."""
    found: dict[int, Optimizer] = {}
    for thing in given:
        if isinstance(thing, Optimizer):
            check_can_be_sliced(unwrapped_optimizer(thing))
            found[id(unwrapped_optimizer(thing))] = thing
        elif isinstance(thing, Iterable) and not isinstance(thing, str | Tensor | nn.Module):
            found |= {id(unwrapped_optimizer(inner)): inner for inner in given_optimizers(thing)}
        else:
            raise SparsityError(
                "step needs the optimiser of the model, or all of them, which become small with it, got "
                f"{type(thing).__name__}"
            )
    return tuple(found.values())


def unwrapped_optimizer(optimizer: Optimizer) -> Optimizer:
    """The optimiser inside wrappers that look like one, such as that of Accelerate."""
    inner = getattr(optimizer, "optimizer", None)
    return unwrapped_optimizer(inner) if isinstance(inner, Optimizer) else optimizer


def _is_layer(module: nn.Module) -> bool:
    """Whether it is a layer of PyTorch or of this package, or a subclass: its attributes are sizes and options."""
    kinds = (kind for kind in type(module).__mro__ if kind not in _BASES)
    return any(kind.__module__.startswith(("torch.nn.modules", "diffsparse.")) for kind in kinds)


def _adaptors(module: nn.Module) -> set[int]:
    """The numbers of the hooks that compaction put on `module`; flags of hooks have the same numbers."""
    hooks = [vars(module)[key] for key in HOOKS if isinstance(vars(module)[key], dict)]
    return {number for held in hooks for number, hook in held.items() if isinstance(hook, ADAPTOR_HOOKS)}


def has_hooks_of_a_user(module: nn.Module) -> bool:
    """Whether somebody else than compaction sees what goes into `module` and what comes out."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return not all(isinstance(hook, ADAPTOR_HOOKS) for hook in hooks)


def _merge_hooks(old: nn.Module, new: nn.Module) -> None:
    """Give `new` the user's own hooks of `old`, not copies of them, beside its adaptors.

    The dictionaries stay the same objects, so that handles given out earlier still remove their hooks.
    """
    gone, added = _adaptors(old), _adaptors(new)
    for key in HOOKS:
        if isinstance(hooks := vars(old)[key], dict):
            own = {number: hook for number, hook in hooks.items() if number not in gone}
            made = {number: hook for number, hook in vars(new)[key].items() if number in added}
            hooks.clear()
            # the user's hooks see what the code around the layer sees
            hooks.update(made | own if key == "_forward_hooks" else own | made)
            vars(new)[key] = hooks


def _graft(old: nn.Module, new: nn.Module) -> None:
    """Make `old` what `new`, of the same class, is; whatever else the user put into it stays as it is."""
    sizes = vars(new) if _is_layer(new) else {PLAN, *true_attributes(new)}
    for key, value in vars(new).items():
        if key not in OF_TORCH and (key not in vars(old) or key in sizes):
            vars(old)[key] = value
    old._parameters, old._buffers = new._parameters, new._buffers
    old._non_persistent_buffers_set = new._non_persistent_buffers_set
    _merge_hooks(old, new)
    children: dict[str, nn.Module | None] = {}
    for key, child in new._modules.items():
        mine = old._modules.get(key)
        children[key] = child if mine is None or child is None else mine
        if mine is None or child is None:
            continue
        if type(mine) is type(child):
            _graft(mine, child)
        else:
            if isinstance(mine, GatedModule) or isinstance(child, type(mine)):
                _merge_hooks(mine, child)
            # not the new object, because the user's lists and closures hold this one
            become(mine, child)
    for key, mine in old._modules.items():
        if key not in children and mine is not None and runs_in_order(old):
            become(mine, PassOn())
    old._modules.clear()
    old._modules.update(children)
