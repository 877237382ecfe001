"""Batch norms become sparse ones that compute the same."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from diffsparse.errors import SparsityError, SparsityWarning
from diffsparse.gates import SignedGate
from diffsparse.gates.gate import require_finite
from diffsparse.module_tree import HOOKS, lazy_tensor
from diffsparse.nn import SparseBatchNorm, SparseBatchNorm1d, SparseBatchNorm2d, SparseBatchNorm3d
from diffsparse.nn.batchnorm import BatchStatistics, SyncStatistics

SPARSE_FORM = {
    kind.ordinary: kind for kind in (SparseBatchNorm1d, SparseBatchNorm2d, SparseBatchNorm3d, SparseBatchNorm)
}

# A shift this many times its scale makes the gate's gradient as many times too large.
STEEP = 1e4
# A gate may miss its scale by this share of the channel's own scale or shift,
CLOSE = 1e-3
# or by this share of the largest scale, up to 1: scales that have decayed to almost nothing do not matter.
NEGLIGIBLE = 1e-6


def find_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """The batch norms of `model` by name, without those that are sparse already."""
    return {
        name or type(module).__name__: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and not isinstance(module, BatchStatistics)
    }


def replaceable(model: nn.Module, norms: dict[str, _BatchNorm], *, needed: bool) -> dict[str, _BatchNorm]:
    """Those of these batch norms that can become sparse; warns of the others, or raises if one is `needed`."""
    for name, norm in norms.items():
        if lazy_tensor(norm):
            raise SparsityError(f"'{name}' is a lazy batch norm without a size yet; run the model once, then sparsify")
    ordinary = {name: norm for name, norm in norms.items() if _is_ordinary(norm)}
    left = ", ".join(name for name in norms if name not in ordinary)
    reason = "batch norms with a forward pass, an input check, parameters or buffers of their own, or pruned ones"
    if needed and not ordinary:
        raise SparsityError(f"nothing to gate in {type(model).__name__}: {reason} cannot be replaced: {left}")
    if left:
        warnings.warn(f"left alone, being {reason}: {left}", SparsityWarning, stacklevel=3)
    return ordinary


def _is_ordinary(norm: _BatchNorm) -> bool:
    """Whether `norm` computes what PyTorch's batch norm computes."""
    own, names = type(norm), {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    # pruning and parametrisation show as parameters, buffers or children
    return names.issuperset([*norm._parameters, *norm._buffers, *norm._modules]) and any(
        issubclass(own, kind) and own.forward is kind.forward and own._check_input_dim is kind._check_input_dim
        for kind in SPARSE_FORM
    )


def make_sparse(name: str, norm: _BatchNorm, start: float | None, rgf: float | None) -> SparseBatchNorm:
    """The sparse form of `norm`: same function for `start=None`, else every gate at `start` and b at zero."""
    kind = next(sparse for plain, sparse in SPARSE_FORM.items() if isinstance(norm, plain))
    like = norm.weight if norm.weight is not None else norm.running_mean
    place: dict[str, Any] = {} if like is None else {"device": like.device, "dtype": like.dtype}
    value, affine = 0.5 if start is None else start, norm.bias is not None
    sparse = kind(norm.num_features, affine=affine, value=value, rgf=rgf, **place)
    if start is None:
        _keep_function(name, norm, sparse)
    sparse.statistics = (SyncStatistics if isinstance(norm, nn.SyncBatchNorm) else BatchStatistics).of(norm)
    for hooks in HOOKS:
        # the same dictionary objects, so that handles given out earlier still remove their hooks
        setattr(sparse, hooks, getattr(norm, hooks))
    if norm.weight is not None:
        sparse.gate.requires_grad_(norm.weight.requires_grad)
    if norm.bias is not None and sparse.bias is not None:
        sparse.bias.requires_grad_(norm.bias.requires_grad)
    return sparse.train(norm.training)


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
    lost = (now == 0) & (shift != 0)
    problems = {
        f"have a shift and a scale of zero, or so small that {bias.dtype} cannot hold their quotient: they start "
        "dropped, so their constant output is lost and the function of the model changes there": lost,
        f"have a shift more than {STEEP:g} times their scale: outputs are kept, but the gradient of their gates is "
        "that much larger; clip gradients, or zero these scales first": bias.abs() > STEEP,
        f"have a scale that {dtype} cannot tell from the threshold, which the largest scale of the layer sets: their "
        "gates start at another value and the function of the model changes there; bring the scales of the layer "
        "closer first": off > near,
    }
    for problem, channels in problems.items():
        if count := int(channels.sum()):
            warnings.warn(f"{count} channel(s) of '{name}' {problem}", SparsityWarning, stacklevel=4)


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
