"""Gates evaluated once and for all: sparse layers become the ordinary layers that compute the same."""

from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from diffsparse.compact.duplicate import Duplicate
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
    """A copy of `model` in which sparse batch norms, sums and wired stages are ordinary ones.

    A module that computes its weights may have a method `ordinary()`, which gives the one that stores them.
    """
    duplicate = Duplicate()
    settled: list[nn.Module] = []
    try:
        # from the inside out: a sum may hold sparse layers
        for module in reversed(list(model.modules())):
            if isinstance(module, SparseBatchNorm):
                duplicate.made[id(module)] = _ordinary(module)
            elif isinstance(module, SparseSum):
                total = WeightedSum(duplicate(module.components), module.gate())
                duplicate.made[id(module)] = total.train(module.training)
            elif callable(ordinary := getattr(module, "ordinary", None)):
                # copies are known by the identity of what they were made from, which must live as long
                settled.append(ordinary())
                duplicate.made[id(module)] = duplicate(settled[-1])
        return cast(nn.Module, duplicate(model))
    except RuntimeError as error:
        raise SparsityError(
            f"{type(model).__name__} cannot be copied: {error}. If it was pruned with torch.nn.utils.prune, call "
            "prune.remove on its layers first"
        ) from error


@torch.no_grad()
def _ordinary(sparse: SparseBatchNorm) -> nn.Module:
    scale, shift = sparse.scale_and_shift()
    like = sparse.bias if sparse.bias is not None else sparse.running_mean if sparse.running_mean is not None else scale
    # without tensors of its own at first: they would be drawn and thrown away
    norm: _BatchNorm = _ORDINARY[type(sparse)](sparse.num_features, sparse.eps, sparse.momentum, False, False)
    norm.affine, norm.track_running_stats = True, sparse.track_running_stats
    scale = scale.to(device=like.device, dtype=like.dtype, copy=True)
    norm.weight = nn.Parameter(scale, requires_grad=sparse.gate.alpha.requires_grad)
    if shift is None:
        norm.bias = nn.Parameter(torch.zeros_like(scale), requires_grad=False)
    else:
        assert sparse.bias is not None
        shift = shift.to(device=like.device, dtype=like.dtype, copy=True)
        norm.bias = nn.Parameter(shift, requires_grad=sparse.bias.requires_grad)
    for key in ("running_mean", "running_var", "num_batches_tracked"):
        statistic: Tensor | None = getattr(sparse, key)
        setattr(norm, key, None if statistic is None else statistic.clone())
    return norm.train(sparse.training)
