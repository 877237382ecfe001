"""One batch norm made sparse, with its values, flags and hooks."""

import warnings

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from diffsparse.errors import SparsityWarning
from diffsparse.gates import SignedGate
from diffsparse.gates.gate import require_finite
from diffsparse.nn import SparseBatchNorm, SparseBatchNorm1d, SparseBatchNorm2d, SparseBatchNorm3d
from diffsparse.nn.statistics import SyncStatistics

SPARSE_FORM = {
    kind.ordinary: kind for kind in (SparseBatchNorm1d, SparseBatchNorm2d, SparseBatchNorm3d, SparseBatchNorm)
}

# A shift this many times its scale makes the gate's gradient as many times too large.
STEEP = 1e4
# A gate may miss its scale by this share of the channel's own scale or shift,
CLOSE = 1e-3
# or by this share of the largest scale, up to 1: nobody misses scales that have decayed to next to nothing.
NEGLIGIBLE = 1e-6

LOST = (
    "have a shift and a scale of zero, or so small that {dtype} cannot hold their quotient: they start dropped, so "
    "their constant output is lost and the function of the model changes there"
)
STEEP_SHIFT = (
    f"have a shift more than {STEEP:g} times their scale: outputs are kept, but the gradient of their gates is that "
    "much larger; clip gradients, or zero these scales first"
)
OFF = (
    "have a scale that {dtype} cannot tell from the threshold, which the largest scale of the layer sets: their gates "
    "start at another value and the function of the model changes there; bring the scales of the layer closer first"
)

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
    for key, parameter in norm.named_parameters(recurse=False):
        require_finite(f"{key} of '{name}'", parameter)
    dtype = sparse.gate.alpha.dtype
    scale = torch.ones_like(sparse.gate.alpha) if norm.weight is None else norm.weight.detach().to(dtype)
    shift = torch.zeros_like(scale) if norm.bias is None else norm.bias.detach().to(dtype)
    kept, bias = _solve(sparse, scale, shift)
    if sparse.bias is not None:
        sparse.bias.detach().copy_(bias)
    now = sparse.gate().detach()
    off = (now - kept).abs()
    near = torch.maximum(CLOSE * torch.maximum(kept.abs(), shift.abs()), NEGLIGIBLE * kept.abs().max().clamp(max=1))
    _warn(name, (now == 0) & (shift != 0), LOST.format(dtype=bias.dtype))
    _warn(name, bias.abs() > STEEP, STEEP_SHIFT)
    _warn(name, off > near, OFF.format(dtype=dtype))


def _solve(sparse: SparseBatchNorm, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Give `sparse` a gate at `scale`; return the scales it was made for and b = shift / gate in the dtype of b.

    A channel whose b that dtype cannot hold gets a scale of zero.
    """
    while True:
        sparse.gate = SignedGate.from_values(scale, rgf=sparse.gate.rgf)
        now = sparse.gate().detach()
        bias = torch.where(now != 0, shift / torch.where(now != 0, now, 1.0), 0.0)
        bias = bias if sparse.bias is None else bias.to(sparse.bias.dtype)
        # a scale of zero for some lowers the threshold of all, and with it the smallest step of the others
        if bool(bias.isfinite().all()):
            return scale, bias
        scale = torch.where(bias.isfinite(), scale, 0.0)


def _warn(name: str, channels: Tensor, problem: str) -> None:
    if bool(channels.any()):
        warnings.warn(f"{int(channels.sum())} channel(s) of '{name}' {problem}", SparsityWarning, stacklevel=5)


def _keep_statistics(norm: _BatchNorm, sparse: SparseBatchNorm) -> None:
    if isinstance(norm, nn.SyncBatchNorm):
        sparse.statistics = SyncStatistics.of(norm)
        return
    for key in ("running_mean", "running_var", "num_batches_tracked"):
        setattr(sparse.statistics, key, getattr(norm, key))
