"""Gates evaluated once and for all: sparse layers become the ordinary layers that compute the same."""

from itertools import chain
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from diffsparse.compaction.duplicate import Duplicate
from diffsparse.errors import SparsityError, require_module
from diffsparse.module_tree import modules_by_name
from diffsparse.nn import SparseBatchNorm, SparseBatchNorm1d, SparseBatchNorm2d, SparseBatchNorm3d, SparseSum
from diffsparse.nn.weighted_sum import WeightedSum

Model = TypeVar("Model", bound=nn.Module)

_ORDINARY: dict[type[SparseBatchNorm], Any] = {
    SparseBatchNorm1d: nn.BatchNorm1d,
    SparseBatchNorm2d: nn.BatchNorm2d,
    SparseBatchNorm3d: nn.BatchNorm3d,
    SparseBatchNorm: nn.SyncBatchNorm,
}
_LAZY = frozenset({UninitializedParameter, UninitializedBuffer})


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
    for name, module in modules_by_name(model).items():
        if isinstance(module, torch.jit.ScriptModule):
            raise SparsityError(f"'{name or type(module).__name__}' is scripted; compact the model before scripting it")
        if not _LAZY.isdisjoint(map(type, chain(module._parameters.values(), module._buffers.values()))):
            raise SparsityError(f"'{name}' is lazy and has no size yet; run the model once, then compact it")
    return model


@torch.no_grad()
def bake(model: nn.Module) -> nn.Module:
    """A copy of `model` in which sparse batch norms, sums and wired stages are ordinary ones.

    A module that computes its weights may have a method `ordinary()`, which gives the one that stores them.
    """
    duplicate = Duplicate()
    settled: list[nn.Module] = []
    try:
        # from the inside out: a sum may hold sparse layers
        for module in reversed(modules_by_name(model).values()):
            if isinstance(module, SparseBatchNorm):
                duplicate.made[id(module)] = _ordinary(module)
            elif isinstance(module, SparseSum):
                total = WeightedSum(duplicate(module.components), module.gate())
                duplicate.made[id(module)] = total.train(module.training)
            elif callable(getattr(type(module), "ordinary", None)):
                # copies are known by the identity of what they were made from, which must live as long
                settled.append(module.ordinary())  # type: ignore[operator]
                duplicate.made[id(module)] = duplicate(settled[-1])
        return cast(nn.Module, duplicate(model))
    except RuntimeError as error:
        raise SparsityError(
            f"{type(model).__name__} cannot be copied: {error}. If it was pruned with torch.nn.utils.prune, call "
            "prune.remove on its layers first"
        ) from error


def _ordinary(sparse: SparseBatchNorm) -> nn.Module:
    scale, shift = sparse.scale_and_shift()
    of = sparse.statistics
    like = sparse.bias if sparse.bias is not None else of.running_mean if of.running_mean is not None else scale
    weight = nn.Parameter(scale.to(like, copy=True), requires_grad=sparse.gate.alpha.requires_grad)
    if shift is None:
        bias = nn.Parameter(torch.zeros_like(weight), requires_grad=False)
    else:
        assert sparse.bias is not None
        bias = nn.Parameter(shift.to(like), requires_grad=sparse.bias.requires_grad)
    # without tensors of its own at first: they would be drawn and thrown away
    norm: _BatchNorm = _ORDINARY[type(sparse)](of.num_features, of.eps, of.momentum, False, False)
    vars(norm).update(affine=True, track_running_stats=of.track_running_stats, training=sparse.training)
    norm._parameters.update(weight=weight, bias=bias)
    norm._buffers.update({key: None if held is None else held.clone() for key, held in of._buffers.items()})
    return norm
