"""One batch norm made sparse, with its values, flags and hooks."""

import warnings

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from diffsparse.errors import SparsityError, SparsityWarning
from diffsparse.gates import SignedGate
from diffsparse.nn import SparseBatchNorm, SparseBatchNorm1d, SparseBatchNorm2d, SparseBatchNorm3d
from diffsparse.nn.statistics import SyncStatistics

SPARSE_FORM: dict[type[nn.Module], type[SparseBatchNorm]] = {
    nn.BatchNorm1d: SparseBatchNorm1d,
    nn.BatchNorm2d: SparseBatchNorm2d,
    nn.BatchNorm3d: SparseBatchNorm3d,
    nn.SyncBatchNorm: SparseBatchNorm,
}

# A shift this many times its scale makes the gate's gradient as many times too large.
STEEP = 1e4

_HOOKS = [key for key in vars(nn.Module()) if "hook" in key]


def make_sparse(name: str, norm: _BatchNorm, start: float | None, rgf: float | None) -> SparseBatchNorm:
    """The sparse form of `norm`: same function for `start=None`, else every gate at `start` and b at zero."""
    kind = next(sparse for plain, sparse in SPARSE_FORM.items() if isinstance(norm, plain))
    sparse = kind(
        norm.num_features,
        norm.eps,
        norm.momentum,
        norm.bias is not None,
        norm.track_running_stats,
        *_placement(norm),
        value=0.5 if start is None else start,
        rgf=rgf,
    )
    if start is None:
        _keep_function(name, norm, sparse)
    _keep_statistics(norm, sparse)
    for hooks in _HOOKS:
        # the same dictionary objects, so that handles given out earlier still remove their hooks
        setattr(sparse, hooks, getattr(norm, hooks))
    if norm.weight is not None:
        for parameter in sparse.gate.parameters():
            parameter.requires_grad_(norm.weight.requires_grad)
    if norm.bias is not None and sparse.bias is not None:
        sparse.bias.requires_grad_(norm.bias.requires_grad)
    return sparse.train(norm.training)


def _placement(norm: _BatchNorm) -> tuple[torch.device | None, torch.dtype | None]:
    for tensor in (norm.weight, norm.running_mean):
        if tensor is not None:
            return tensor.device, tensor.dtype
    return None, None


def _keep_function(name: str, norm: _BatchNorm, sparse: SparseBatchNorm) -> None:
    _check_finite(name, norm)
    scale = norm.weight if norm.weight is not None else torch.ones_like(sparse.gate.alpha)
    sparse.gate = SignedGate.from_values(scale, rgf=sparse.gate.rgf)
    if norm.bias is None or sparse.bias is None:
        return
    now, shift = sparse.gate().detach(), norm.bias.detach().to(sparse.gate.alpha.dtype)
    alive = now != 0
    sparse.bias.detach().copy_(torch.where(alive, shift / torch.where(alive, now, 1.0), 0.0))
    _warn_of_lost_shifts(name, ~alive & (shift != 0))
    _warn_of_steep_shifts(name, sparse.bias.detach().abs() > STEEP)


def _check_finite(name: str, norm: _BatchNorm) -> None:
    for key, parameter in norm.named_parameters(recurse=False):
        if not bool(torch.isfinite(parameter).all()):
            bad = parameter[~torch.isfinite(parameter)][0].item()
            raise SparsityError(f"{key} of '{name}' holds {bad}; every entry must be a finite number")


def _warn_of_lost_shifts(name: str, lost: Tensor) -> None:
    if bool(lost.any()):
        warnings.warn(
            f"{int(lost.sum())} channel(s) of '{name}' have a scale of exactly zero and a shift that is not: they "
            "start dropped, so their constant output is lost and the function of the model changes there",
            SparsityWarning,
            stacklevel=5,
        )


def _warn_of_steep_shifts(name: str, steep: Tensor) -> None:
    if bool(steep.any()):
        warnings.warn(
            f"{int(steep.sum())} channel(s) of '{name}' have a shift more than {STEEP:g} times their scale: outputs "
            "are kept, but the gradient of their gates is that much larger; clip gradients, or zero these scales first",
            SparsityWarning,
            stacklevel=5,
        )


def _keep_statistics(norm: _BatchNorm, sparse: SparseBatchNorm) -> None:
    if isinstance(norm, nn.SyncBatchNorm):
        sparse.statistics = SyncStatistics.of(norm)
        return
    for key in ("running_mean", "running_var", "num_batches_tracked"):
        setattr(sparse.statistics, key, getattr(norm, key))
