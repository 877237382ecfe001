"""Gates put back into a network that was compacted, so that it goes on learning what else can go."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from diffsparse.budget.exact import Exact
from diffsparse.budget.limits import cost_numbers
from diffsparse.budget.steering import Steering
from diffsparse.compaction import Compacted
from diffsparse.compaction.actions import Slice
from diffsparse.compaction.adaptors import BEHIND, SelectInput, copy_adaptor_buffers
from diffsparse.compaction.tensor_slice import TensorSlice
from diffsparse.errors import SparsityError
from diffsparse.example import Example
from diffsparse.gates import GatedModule, named_gates
from diffsparse.module_tree import replace_modules

WASTE = 1.02
"""A network becomes small before it is due only if it can go on to within this factor of what the formula says."""


@dataclass(frozen=True)
class Regated:
    """A compact network with gates."""

    small: Compacted[Any]
    """The network; the plan says nothing of gates."""
    kept: Mapping[str, list[int]]
    """By the name of each gate before: the entries that are left, perhaps none."""

    def with_gate_slices(self) -> Compacted[Any]:
        """The network with a plan that slices the parameters of gates too, for the state of an optimiser."""
        alphas = {f"{name}.alpha".lstrip("."): TensorSlice(dims={0: kept}) for name, kept in self.kept.items() if kept}
        plan = self.small.plan
        return replace(self.small, plan=replace(plan, tensors=plan.tensors | alphas))


def check_can_regate(model: nn.Module) -> None:
    """Raise if a gate of `model` cannot live on in a compact network."""
    for name, owner in _owners(model).items():
        if not hasattr(owner, "regated") or any(gate.alpha.dim() != 1 for _, gate in named_gates(owner)):
            raise SparsityError(
                f"the gates of '{name}', a {type(owner).__name__}, cannot live on when the network becomes small; give "
                "shrinks=1, so that it becomes small once"
            )


def regate(model: nn.Module, small: Compacted[Any]) -> Regated:
    """`small`, which was made from the gated `model`, with the gates of what is left."""
    modules = dict(small.model.named_modules())
    kept = dict[str, list[int]]()
    new: dict[nn.Module, nn.Module] = {}
    for name, owner in _owners(model).items():
        ((inner, gate),) = named_gates(owner)
        ordinary, key = modules.get(name), next(iter(owner.parameter_sources()))
        chosen: list[int] = []
        if ordinary is not None and isinstance(getattr(ordinary, key, None), nn.Parameter):
            sliced = small.plan.tensors.get(f"{name}.{key}".lstrip("."))
            chosen = list(range(gate.alpha.numel())) if sliced is None else list(sliced.dims[0])
            index = torch.tensor(chosen, dtype=torch.long, device=gate.alpha.device)
            new[ordinary] = _with_adaptors(owner.regated(ordinary, index), ordinary)
        kept[f"{name}.{inner}".strip(".")] = chosen
    return Regated(replace(small, model=replace_modules(small.model, new)), kept)


def can_go_on(small: Compacted[Any], regated: Regated, steering: Steering, example: Example) -> bool:
    """Whether the network, once small, could still end on the number, and become as small as the formula says."""
    # the values of a gate know nothing of what its layer was multiplied by
    rescaled = {name for name, action in small.plan.layers.items() if isinstance(action, Slice) and action.rescaled}
    if rescaled & {*_owners(small.original)}:
        return False
    # what is gone does not come back; and adaptors may prevent that more goes
    if steering.limits.excess(cost_numbers(small.after)) < 1:
        return False
    kept = steering.entries.mask(regated.kept)
    entries = steering.entries.in_model(regated.small.model)
    pattern, alive = entries.random_patterns(1)[0], np.zeros(len(kept), bool)
    alive[kept] = pattern
    real = Exact(regated.small.model, example, entries).cost(pattern)
    return bool((real[:2] <= WASTE * steering.costs.cost(alive)[:2]).all())


def _owners(model: nn.Module) -> dict[str, Any]:
    """The modules that own gates, by name: gated layers, or gates on their own."""
    left = {gate for _, gate in named_gates(model)}
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        held = {gate for _, gate in named_gates(module)} & left
        if held and isinstance(module, GatedModule):
            found[name] = module
            left -= held
    return found


def _with_adaptors(gated: nn.Module, ordinary: nn.Module) -> nn.Module:
    """`gated` with the selects and expands that compaction put around `ordinary`."""
    copy_adaptor_buffers(ordinary, gated)
    for hook in ordinary._forward_pre_hooks.values():
        if isinstance(hook, SelectInput):
            gated.register_forward_pre_hook(hook)
    for hook in ordinary._forward_hooks.values():
        if isinstance(hook, BEHIND):
            gated.register_forward_hook(hook)
    return gated
