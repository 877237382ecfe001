"""`sparsify`: gates put into a model that its user wrote."""

import warnings
from typing import TypeVar, cast

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from diffsparse.errors import SparsityError, SparsityWarning, require_module, require_number
from diffsparse.gating.convert import SPARSE_FORM, make_sparse
from diffsparse.module_tree import lazy_tensor, replace_modules
from diffsparse.nn import SparseBatchNorm
from diffsparse.nn.statistics import BatchStatistics
from diffsparse.selection import Selection, select

Model = TypeVar("Model", bound=nn.Module)


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
        raise SparsityError(
            "the model is wrapped in DistributedDataParallel, which would not see new gates; sparsify before wrapping"
        )
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
    # pruning and parametrisation show as parameters, buffers or children
    own = {*norm._parameters, *norm._buffers, *norm._modules}
    names = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    return own <= names and any(
        isinstance(norm, kind)
        and type(norm).forward is kind.forward
        and type(norm)._check_input_dim is kind._check_input_dim
        for kind in SPARSE_FORM
    )
