"""Gates evaluated once and for all: sparse layers become the ordinary layers that compute the same."""

import copy
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from diffsparse.errors import SparsityError, require_module
from diffsparse.nn import SparseBatchNorm, SparseBatchNorm1d, SparseBatchNorm2d, SparseBatchNorm3d, SparseSum
from diffsparse.nn.weighted_sum import WeightedSum

Model = TypeVar("Model", bound=nn.Module)

_ORDINARY: dict[type[SparseBatchNorm], Any] = {
    SparseBatchNorm1d: nn.BatchNorm1d,
    SparseBatchNorm2d: nn.BatchNorm2d,
    SparseBatchNorm3d: nn.BatchNorm3d,
    SparseBatchNorm: nn.SyncBatchNorm,
}


def without_wrappers(model: Model) -> Model:
    """The user's own model, without the wrappers of data parallel training and `torch.compile`."""
    inner: nn.Module | None = None
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = model.module
    elif "_orig_mod" in model._modules:
        inner = model._modules["_orig_mod"]
    return model if inner is None else without_wrappers(cast(Model, inner))


def check_model(model: Model) -> Model:
    """The user's own model without wrappers; raises for what cannot be recorded."""
    require_module("model", model)
    model = without_wrappers(model)
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise SparsityError(f"'{name or type(module).__name__}' is scripted; compact the model before scripting it")
        if any(is_lazy(tensor) for tensor in [*module._parameters.values(), *module._buffers.values()]):
            raise SparsityError(f"'{name}' is lazy and has no size yet; run the model once, then compact it")
    return model


def bake(model: nn.Module) -> nn.Module:
    """A copy of `model` in which sparse batch norms and sums are ordinary ones."""
    try:
        baked = copy.deepcopy(model)
    except RuntimeError as error:
        raise SparsityError(
            f"{type(model).__name__} cannot be copied: {error}. If it was pruned with torch.nn.utils.prune, call "
            "prune.remove on its layers first"
        ) from error
    ordinary: dict[nn.Module, nn.Module] = {}
    for module in baked.modules():
        if isinstance(module, SparseBatchNorm):
            ordinary[module] = _ordinary(module)
        elif isinstance(module, SparseSum):
            ordinary[module] = WeightedSum(module.components, module.gate()).train(module.training)
    for module in list(baked.modules()):
        for key, child in module._modules.items():
            if child in ordinary:
                module._modules[key] = ordinary[child]
    return ordinary.get(baked, baked)


@torch.no_grad()
def _ordinary(sparse: SparseBatchNorm) -> nn.Module:
    kind = _ORDINARY[type(sparse)]
    scale, shift = sparse.scale_and_shift()
    like = sparse.bias if sparse.bias is not None else sparse.running_mean if sparse.running_mean is not None else scale
    norm: _BatchNorm = kind(sparse.num_features, sparse.eps, sparse.momentum, True, sparse.track_running_stats)
    norm = norm.to(device=like.device, dtype=like.dtype)
    norm.weight.copy_(scale)
    norm.weight.requires_grad_(sparse.gate.alpha.requires_grad)
    if shift is None:
        norm.bias.zero_()
        norm.bias.requires_grad_(False)
    else:
        norm.bias.copy_(shift)
        assert sparse.bias is not None
        norm.bias.requires_grad_(sparse.bias.requires_grad)
    for key in ("running_mean", "running_var", "num_batches_tracked"):
        statistic: Tensor | None = getattr(sparse, key)
        setattr(norm, key, None if statistic is None else statistic.clone())
    return norm.train(sparse.training)
