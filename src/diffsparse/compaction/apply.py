"""A plan applied to a model: parameters sliced, attributes made true, adaptors put in place."""

from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from diffsparse.compaction.adaptors import (
    EXPAND,
    FILL,
    SELECT,
    Constant,
    ConstantMap,
    ExpandOutput,
    PassOn,
    SelectInput,
)
from diffsparse.compaction.plan import LayerPlan, Plan, TensorSlice
from diffsparse.compaction.ragged import RaggedConv
from diffsparse.module_tree import modules_by_name


class _Indices:
    """Index tensors, one for each list and device: tensors of one layer are cut alike."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, torch.device], Tensor] = {}

    def of(self, chosen: list[int], device: torch.device) -> Tensor:
        key = id(chosen), device
        if key not in self._made:
            self._made[key] = torch.from_numpy(np.array(chosen, np.int64)).to(device)
        return self._made[key]


def slice_tensor(tensor: Tensor, kept: TensorSlice, indices: _Indices | None = None) -> Tensor:
    """What stays of `tensor`."""
    indices = indices or _Indices()
    for dim, chosen in kept.dims.items():
        if kept.columns is None or dim == 0:
            tensor = tensor.index_select(dim, indices.of(chosen, tensor.device))
    if kept.columns is None:
        return tensor
    heights = kept.heights or [len(tensor) // len(kept.columns)] * len(kept.columns)
    widest = max(map(len, kept.columns))
    picked = []
    for block, columns in zip(torch.split_with_sizes(tensor, heights), kept.columns, strict=True):
        taken = block.index_select(1, torch.tensor(columns, device=tensor.device))
        missing = taken.new_zeros(len(taken), widest - len(columns), *taken.shape[2:])
        picked.append(torch.cat([taken, missing], 1))
    return torch.cat(picked)


COMPACT = "_made_by_compact"
"""Attribute that marks a compact model."""


@torch.no_grad()
def shrink_in_place(model: nn.Module, plan: Plan) -> nn.Module:
    """Make `model`, which the plan fits and whose sparse layers are already ordinary ones, as small as it says."""
    indices = _Indices()
    for name, layer in plan.layers.items():
        if layer.what == "removed":
            parent, key = _parent(model, name)
            # not `del parent[i]`, which would rename the layers behind it
            del parent._modules[key]
        elif layer.what == "identity":
            _replace(model, name, PassOn())
        elif layer.what in {"constant", "map"}:
            _replace(model, name, _constant(model.get_submodule(name), layer))
        elif layer.what == "ragged":
            _replace(model, name, RaggedConv(model.get_submodule(name), layer.blocks or []))
        elif layer.what == "folded":
            norm, identity = model.get_submodule(name), nn.Identity()
            _expand(identity, layer, _some_tensor(norm), indices)
            _replace(model, name, identity)
    modules = modules_by_name(model)
    _slice_tensors(modules, plan, indices)
    for name, layer in plan.layers.items():
        if layer.what in {"sliced", "ragged"}:
            _adapt(modules[name], layer, indices)
    for module in modules.values():
        vars(module).update(_true_attributes(module))
    vars(model)[COMPACT] = True
    return model


def held(module: nn.Module, key: str) -> Tensor | None:
    """The parameter or buffer of this name, if there is one."""
    found = module._parameters.get(key)
    return module._buffers.get(key) if found is None else found


def _parent(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    owner, _, key = name.rpartition(".")
    return model.get_submodule(owner), key


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, key = _parent(model, name)
    module.train(parent.training)
    parent._modules[key] = module


def _constant(old: nn.Module, layer: LayerPlan) -> nn.Module:
    new: nn.Module
    if layer.what == "map":
        assert layer.shape is not None
        assert layer.input_size is not None
        new = ConstantMap(layer.shape, layer.input_size)
    else:
        new = Constant(layer.width, layer.dim, layer.window, layer.transposed)
    like = _some_tensor(old)
    return new.to(device=like.device, dtype=like.dtype)


def _some_tensor(module: nn.Module) -> Tensor:
    """A tensor of the module that shows its device and dtype."""
    own = (module._parameters.values(), module._buffers.values())
    for tensor in chain(*own, module.parameters(), module.buffers()):
        if tensor is not None and tensor.is_floating_point():
            return tensor
    return torch.empty(0)


def _slice_tensors(modules: dict[str, nn.Module], plan: Plan, indices: _Indices) -> None:
    for name, kept in plan.tensors.items():
        owner, _, key = name.rpartition(".")
        tensor = held(modules[owner], key) if owner in modules else None
        if tensor is not None:
            # not a tensor in its place: whoever else holds it, ties stay
            tensor.data = slice_tensor(tensor.data, kept, indices)


def _adapt(module: nn.Module, layer: LayerPlan, indices: _Indices) -> None:
    if layer.groups is not None and layer.what == "sliced":
        module.groups = layer.groups  # type: ignore[assignment]
    if not layer.adds_bias and layer.select is None and layer.expand is None:
        return
    like = _some_tensor(module)
    if layer.adds_bias:
        assert layer.outputs is not None
        trained = any(parameter.requires_grad for parameter in module.parameters())
        module.bias = nn.Parameter(like.new_zeros(layer.outputs[1]), requires_grad=trained)
    if layer.select is not None:
        module.register_buffer(SELECT, indices.of(layer.select, like.device), persistent=False)
        module.register_forward_pre_hook(SelectInput(layer.dim), prepend=True)
    _expand(module, layer, like, indices)


def _expand(module: nn.Module, layer: LayerPlan, like: Tensor, indices: _Indices) -> None:
    if layer.expand is not None:
        module.register_buffer(EXPAND, indices.of(layer.expand, like.device), persistent=False)
        module.register_buffer(FILL, like.new_zeros(layer.width))
        module.register_forward_hook(ExpandOutput(layer.dim))


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
