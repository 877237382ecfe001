"""Gates are evaluated for good: gated modules become ordinary modules that compute the same."""

from functools import cached_property, lru_cache
from typing import TypeVar, cast

import torch
from torch import nn

from diffsparse.compaction.adaptors import copy_adaptor_buffers
from diffsparse.compaction.duplicate import Duplicate
from diffsparse.errors import SparsityError, require_module
from diffsparse.gates import GatedModule, Source
from diffsparse.module_tree import (
    HOOKS,
    lazy_tensor,
    memory_of,
    modules_by_name,
    require_whole_model,
    without_wrappers,
)

Model = TypeVar("Model", bound=nn.Module)


def check_model(model: Model) -> Model:
    """The user's own model without wrappers; raises for what cannot be recorded."""
    model = without_wrappers(require_module("model", model))
    for name, module in modules_by_name(model).items():
        if isinstance(module, torch.jit.ScriptModule):
            raise SparsityError(f"'{name or type(module).__name__}' is scripted; compact the model before scripting it")
    require_whole_model(model, "compact ds.gathered(model), a whole copy of it")
    if lazy := lazy_tensor(model):
        raise SparsityError(f"'{lazy}' is lazy and has no size yet; run the model once, then compact it")
    return model


def materialise(model: nn.Module) -> nn.Module:
    """A copy of `model` in which every gated module is an ordinary one."""
    return materialise_and_look(model)[0]


@torch.no_grad()
def materialise_and_look(model: nn.Module) -> tuple[nn.Module, bool]:
    """The same, and whether the copy should be compared: somebody else's gates, functions or objects are in it."""
    try:
        made = _Materialiser(model)
    except (RuntimeError, TypeError) as error:
        raise SparsityError(f"{type(model).__name__} cannot be copied: {error}") from error
    return made.copy, made.saw_code


def parameter_sources(model: nn.Module) -> dict[str, Source]:
    """Where parameters of `materialise(model)` come from; those not named here keep their name and their state."""
    found: dict[str, Source] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if (gated := _gated(module)) is not None:
            prefix = f"{name}." if name else ""
            for key, source in gated.parameter_sources().items():
                found[prefix + key] = Source(prefix + source.name, source.keeps_state)
    return found


def has_foreign_gates(model: nn.Module) -> bool:
    """Whether a gated module of somebody else's is in `model`, whose ordinary form has to be compared with it."""
    kinds = {type(module) for module in modules_by_name(model).values()}
    return any(_is_gated(kind) and not is_own(kind) for kind in kinds)  # type: ignore[arg-type]


def is_own(kind: type[nn.Module]) -> bool:
    """Whether it is a class of this package."""
    return kind.__module__.startswith("diffsparse.")


class _Materialiser:
    """Its `copy` is the model without gates."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._duplicate = Duplicate(model)
        self._seen: set[nn.Module] = set()
        # copies are known by the identity of what they were made from, which must live as long
        self._made: list[nn.Module] = []
        self._settle(model)
        self.copy = cast(nn.Module, self._duplicate(model))
        self.saw_code = self._duplicate.saw_code or has_foreign_gates(model)

    def _settle(self, module: nn.Module) -> None:
        """Make the ordinary forms of all gated modules in `module`, with copies of what they share."""
        if module in self._seen:
            return
        self._seen.add(module)
        gated = _gated(module)
        ordinary = module if gated is None else gated.materialise()
        if ordinary is not module:
            self._settle(ordinary)
            self._made.append(ordinary)
            new = self._is_new(ordinary, is_own(type(module)))
            form = self._duplicate.made[id(module)] = ordinary if new else self._duplicate(ordinary)
            self._carry_over(module, form)
            return
        for child in module.children():
            self._settle(child)

    def _carry_over(self, module: nn.Module, ordinary: nn.Module) -> None:
        """Hooks of a gated module, and what adaptors of a compact model hold, belong to its ordinary form too."""
        for key in HOOKS:
            if vars(module)[key]:
                vars(ordinary)[key] = self._duplicate(vars(module)[key])
        copy_adaptor_buffers(module, ordinary)

    @cached_property
    def _memory(self) -> set[int | None]:
        return set[int | None]().union(*map(_memory, modules_by_name(self._model).values()))

    def _is_new(self, ordinary: nn.Module, own: bool) -> bool:
        """Whether it holds nothing of the model, and need not be copied; gated modules of our own make new tensors."""
        if ordinary._modules or id(ordinary) in self._duplicate.made:
            return False
        memory = set() if own else _memory(ordinary)
        return own or (bool(memory) and None not in memory and memory.isdisjoint(self._memory))


def _memory(module: nn.Module) -> set[int | None]:
    """The memory of the tensors that `module` itself holds."""
    tensors = (*module._parameters.values(), *module._buffers.values())
    return {memory_of(tensor) for tensor in tensors if tensor is not None}


def _gated(module: nn.Module) -> GatedModule | None:
    return cast(GatedModule, module) if _is_gated(type(module)) else None  # type: ignore[arg-type]


@lru_cache(maxsize=1024)
def _is_gated(kind: type[nn.Module]) -> bool:
    # a protocol takes microseconds to ask, and most modules of a network are of a few classes
    return issubclass(kind, GatedModule)
