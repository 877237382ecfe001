"""`sparsify` puts gates into a model that its user wrote; `parameter_groups` sorts the parameters for the optimiser."""

import warnings
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from diffsparse.errors import SparsityError, SparsityWarning, require_module, require_number
from diffsparse.gates import SignedGate, named_gates
from diffsparse.gates.gate import require_finite
from diffsparse.module_tree import lazy_tensor, replace_modules
from diffsparse.nn import SparseBatchNorm, SparseBatchNorm1d, SparseBatchNorm2d, SparseBatchNorm3d
from diffsparse.nn.batchnorm import BatchStatistics, SyncStatistics
from diffsparse.selection import Selection, select

Model = TypeVar("Model", bound=nn.Module)

SPARSE_FORM = {
    kind.ordinary: kind for kind in (SparseBatchNorm1d, SparseBatchNorm2d, SparseBatchNorm3d, SparseBatchNorm)
}
_HOOKS = [key for key in vars(nn.Module()) if "hook" in key]

# A shift this many times its scale makes the gate's gradient as many times too large.
STEEP = 1e4
# A gate may miss its scale by this share of the channel's own scale or shift,
CLOSE = 1e-3
# or by this share of the largest scale, up to 1: scales that have decayed to almost nothing do not matter.
NEGLIGIBLE = 1e-6


def sparsify(
    model: Model, only: Selection | None = None, *, start: float | None = None, rgf: float | None = None
) -> Model:
    """Replace batch norms of `model` by sparse ones, in place, and return the model.

    Args:
        model: any module; a batch norm itself is returned as a new module.
        only: which batch norms, by default all: a name pattern (`"layer1.*"`) or a type, which choose every batch norm
            inside what they match, a function of the name and module of a batch norm, or several of these.
        start: None keeps the function: a trained model gives the same outputs up to float rounding. A number (the
            paper: 0.5) starts every gate there and every b at zero, for training from scratch.
        rgf: `elu_alpha` of rectified gradient flow in the new gates, or None.

    Build the optimiser, and wrap the model in DistributedDataParallel, after this: the gates are new parameters.

    Shared modules stay shared; device, dtype, training mode, `requires_grad` and hooks are kept. Batch norms that do
    more than PyTorch's own (a subclass with its own forward pass, parameters or buffers, a pruned one) are left alone
    with a warning. If anything is wrong the model is left as it was.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        >>> sparsify(model)[1].gate
        SignedGate((8,))
    """
    if any(isinstance(module, DistributedDataParallel) for module in require_module("model", model).modules()):
        raise SparsityError("DistributedDataParallel would not see new gates; sparsify before wrapping the model")
    if start is not None:
        require_number("start", start)
    replacements: dict[nn.Module, nn.Module] = {}
    # not a comprehension, which is a frame of its own up to Python 3.11: warnings point at the caller
    for name, norm in _norms_to_replace(model, only).items():
        replacements[norm] = make_sparse(name, norm, start, rgf)
    return cast(Model, replace_modules(model, replacements))


def _norms_to_replace(model: nn.Module, only: Selection | None) -> dict[str, _BatchNorm]:
    """The chosen batch norms by name; raises when there is none, warns of those that cannot be replaced."""
    norms = {
        name or type(module).__name__: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and not isinstance(module, BatchStatistics)
    }
    if not norms:
        kinds = ", ".join(kind.__name__ for kind in SPARSE_FORM)
        there = sum(isinstance(module, SparseBatchNorm) for module in model.modules())
        already = f"; {there} sparse batch norm(s) are there already" if there else ""
        raise SparsityError(f"nothing to gate in {type(model).__name__}: looked for {kinds}{already}")
    chosen = select(model, only, norms.values(), "batch norm to gate")
    norms = {name: norm for name, norm in norms.items() if norm in chosen}
    for name, norm in norms.items():
        if lazy_tensor(norm):
            raise SparsityError(f"'{name}' is a lazy batch norm without a size yet; run the model once, then sparsify")
    ordinary = {name: norm for name, norm in norms.items() if _is_ordinary(norm)}
    left = ", ".join(name for name in norms if name not in ordinary)
    reason = "batch norms with a forward pass, an input check, parameters or buffers of their own, or pruned ones"
    if not ordinary:
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
    for hooks in _HOOKS:
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


def parameter_groups(
    model: nn.Module, weight_decay: float = 1e-4, gate_weight_decay: float = 0.0, *, gate_lr: float | None = None
) -> list[dict[str, Any]]:
    """Two parameter groups for any optimiser: ordinary weights, and `alpha` and `beta` of every gate.

    Weight decay on `beta` is not harmless: beta starts well below zero, decay pulls it towards zero and so *raises* the
    threshold, which drops entries without the loss. Decay on `alpha` alone only rescales a gate. The default leaves
    gates alone; the paper's channel experiments use a small decay on both.

    Each group has its own `weight_decay`, which overrides the optimiser's argument of that name: give it here.

    Args:
        model: the gated model; frozen parameters are left out, shared ones come once.
        weight_decay: for everything that is not a gate.
        gate_weight_decay: for `alpha` and `beta`.
        gate_lr: learning rate of gates; by default the optimiser's, as for everything else. Adam moves each number by
            about the learning rate per step, and gates have farther to go than weights: five times its rate suits them.

    Example:
        >>> import diffsparse as ds
        >>> model = ds.sparsify(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)))
        >>> [(g["name"], len(g["params"]), g["weight_decay"]) for g in parameter_groups(model)]
        [('weights', 3, 0.0001), ('gates', 2, 0.0)]
    """
    require_number("weight_decay", weight_decay, low=0)
    require_number("gate_weight_decay", gate_weight_decay, low=0)
    gated = {parameter for _, gate in named_gates(require_module("model", model)) for parameter in gate.parameters()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"name": "weights", "params": [p for p in trained if p not in gated], "weight_decay": weight_decay},
        {"name": "gates", "params": [p for p in trained if p in gated], "weight_decay": gate_weight_decay},
    ]
    if gate_lr is not None:
        groups[1]["lr"] = require_number("gate_lr", gate_lr, above=0)
    return [group for group in groups if group["params"]]


def warn_of_idle_gates(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Warn once if `optimizer` does not hold every gate of `model` that requires gradients: it would never move."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    idle = [
        name or type(gate).__name__
        for name, gate in named_gates(model)
        if any(parameter.requires_grad and id(parameter) not in held for parameter in gate.parameters())
    ]
    if idle:
        more = f" (and {len(idle) - 1} more)" if len(idle) > 1 else ""
        warnings.warn(
            f"gate '{idle[0]}'{more} is in no parameter group: the optimiser was probably built before sparsify, and "
            "its steps leave the gate as it is. Build it afterwards, from parameter_groups(model), or freeze the gate",
            SparsityWarning,
            stacklevel=3,
        )
