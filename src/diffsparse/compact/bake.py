"""Gates evaluated once and for all: sparse layers become the ordinary layers that compute the same."""

import copy

import torch
from torch import Tensor, nn

from diffsparse.gates import named_gates
from diffsparse.nn import SparseBatchNorm, SparseBatchNorm1d, SparseBatchNorm3d

_ORDINARY = {SparseBatchNorm1d: nn.BatchNorm1d, SparseBatchNorm3d: nn.BatchNorm3d}


def bake(model: nn.Module) -> nn.Module:
    """A copy of `model` in which every sparse batch norm is an ordinary one."""
    baked = copy.deepcopy(model)
    ordinary = {m: _ordinary(m) for m in baked.modules() if isinstance(m, SparseBatchNorm)}
    for module in list(baked.modules()):
        for key, child in module._modules.items():
            if child in ordinary:
                module._modules[key] = ordinary[child]
    return ordinary.get(baked, baked)  # type: ignore[call-overload,no-any-return]


@torch.no_grad()
def _ordinary(sparse: SparseBatchNorm) -> nn.Module:
    kind = _ORDINARY.get(type(sparse), nn.BatchNorm2d)
    if type(sparse) is SparseBatchNorm:
        kind = nn.SyncBatchNorm
    scale, shift = sparse.scale_and_shift()
    like = sparse.bias if sparse.bias is not None else sparse.running_mean if sparse.running_mean is not None else scale
    norm = kind(sparse.num_features, sparse.eps, sparse.momentum, True, sparse.track_running_stats)
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


def has_gates(model: nn.Module) -> bool:
    """Whether anything in `model` is a gate."""
    return any(True for _ in named_gates(model))
