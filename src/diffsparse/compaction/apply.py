"""A plan applied to a model: tensors sliced, actions done, attributes made true."""

import torch
from torch import Tensor, nn

from diffsparse.compaction.actions import ModelEdit
from diffsparse.compaction.plan import Plan
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
        vars(module).update(_true_attributes(module))
    vars(model)[COMPACT] = True
    return model


def held_tensor(modules: dict[str, nn.Module], name: str) -> Tensor | None:
    """The parameter or buffer of this name, if there is one."""
    owner, _, key = name.rpartition(".")
    if owner not in modules:
        return None
    found = modules[owner]._parameters.get(key)
    return modules[owner]._buffers.get(key) if found is None else found


def _true_attributes(module: nn.Module) -> dict[str, int]:
    """What the module says of its widths, from the tensors that it holds."""
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        inputs, outputs = module.weight.shape[:2]
        return {"in_channels": inputs, "out_channels": outputs * module.groups}
    if isinstance(module, nn.modules.conv._ConvNd):
        outputs, inputs = module.weight.shape[:2]
        return {"in_channels": inputs * module.groups, "out_channels": outputs}
    if isinstance(module, nn.Linear):
        return {"in_features": module.weight.shape[1], "out_features": module.weight.shape[0]}
    if isinstance(module, nn.PReLU):
        return {"num_parameters": module.weight.numel()}
    if isinstance(module, nn.modules.batchnorm._NormBase):
        like = module.running_mean if module.running_mean is not None else module.weight
        return {} if like is None else {"num_features": like.shape[0]}
    return {}
