"""A plan applied to a model: tensors sliced, actions done, attributes made true."""

import torch
from torch import Tensor, nn

from diffsparse.compaction.actions import ModelEdit
from diffsparse.compaction.plan import Plan
from diffsparse.compaction.rules import true_attributes
from diffsparse.compaction.tensor_slice import slice_tensor

COMPACT = "_made_by_compact"
"""Attribute that marks a compact model."""


@torch.no_grad()
def shrink_in_place(model: nn.Module, plan: Plan) -> nn.Module:
    """Make `model`, which the plan fits and whose sparse layers are already ordinary ones, as small as it says."""
    edit = ModelEdit(model)
    for name, kept in plan.tensors.items():
        tensor = held_tensor(edit.modules, name)
        if tensor is not None:
            # not a tensor in its place: whoever else holds it, ties stay
            tensor.data = slice_tensor(tensor.data, kept, edit.index)
    for name, action in plan.layers.items():
        action.apply(edit, name)
    for module in edit.modules.values():
        vars(module).update(true_attributes(module))
    vars(model)[COMPACT] = True
    return model


def held_tensor(modules: dict[str, nn.Module], name: str) -> Tensor | None:
    """The parameter or buffer of this name, if there is one."""
    owner, _, key = name.rpartition(".")
    if owner not in modules:
        return None
    found = modules[owner]._parameters.get(key)
    return modules[owner]._buffers.get(key) if found is None else found
