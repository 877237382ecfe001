"""`sparsify`: gates put into a model that its user wrote."""

import warnings
from typing import TypeVar, cast

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase

from diffsparse.errors import SparsityError, SparsityWarning
from diffsparse.nn import SparseBatchNorm
from diffsparse.selection import Selection, select
from diffsparse.sparsify.convert import SPARSE_FORM, make_sparse

Model = TypeVar("Model", bound=nn.Module)


def sparsify(
    model: Model, only: Selection | None = None, *, start: float | None = None, rgf: float | None = None
) -> Model:
    """Replace batch norms of `model` by sparse ones, in place, and return the model.

    Args:
        model: any module; a batch norm itself is returned as a new module.
        only: which batch norms: a name pattern (`"layer1.*"`), a type, a function of name and module, or several of
            them. Naming a module chooses all batch norms inside it. By default all.
        start: None keeps the function: the outputs of a trained model stay the same up to float rounding. A number
            (the paper: 0.5) starts every gate there and every b at zero, for training from scratch.
        rgf: `elu_alpha` of rectified gradient flow in the new gates, or None.

    Modules used in several places stay shared; device, dtype, training mode, `requires_grad` and hooks are kept. If
    anything is wrong the model is left as it was.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        >>> sparsify(model)[1].gate
        SignedGate((8,))
    """
    replacements: dict[nn.Module, SparseBatchNorm] = {}
    # not a comprehension, which is a frame of its own up to Python 3.11: warnings point at the caller
    for name, norm in _norms_to_replace(model, only).items():
        replacements[norm] = make_sparse(name, norm, start, rgf)
    for module in list(model.modules()):
        for key, child in module._modules.items():
            if child in replacements:
                module._modules[key] = replacements[child]
    return cast(Model, replacements.get(model, model))


def _norms_to_replace(model: nn.Module, only: Selection | None) -> dict[str, _BatchNorm]:
    """The chosen batch norms by name; raises when there is none, warns of those that cannot be replaced."""
    chosen = select(model, only)
    inside = {norm.statistics for norm in model.modules() if isinstance(norm, SparseBatchNorm)}
    norms = {
        name: module
        for name, module in model.named_modules()
        if module in chosen and isinstance(module, _BatchNorm) and module not in inside
    }
    for name, norm in norms.items():
        if isinstance(norm, _LazyNormBase) and norm.has_uninitialized_params():
            raise SparsityError(f"'{name}' is a lazy batch norm without a size yet; run the model once, then sparsify")
    own = [name for name, norm in norms.items() if not _computes_as_its_base(norm)]
    if own:
        warnings.warn(
            f"left alone because they are batch norms with a forward of their own: {', '.join(own)}",
            SparsityWarning,
            stacklevel=3,
        )
    replaced = {name: norm for name, norm in norms.items() if name not in own}
    if not replaced:
        kinds = ", ".join(kind.__name__ for kind in SPARSE_FORM)
        among = "" if only is None else f" among what {only!r} chooses"
        already = f"; {len(inside)} sparse batch norm(s) are there already" if inside else ""
        raise SparsityError(f"nothing to gate in {type(model).__name__}: looked for {kinds}{among}{already}")
    return replaced


def _computes_as_its_base(norm: _BatchNorm) -> bool:
    return any(isinstance(norm, kind) and type(norm).forward is kind.forward for kind in SPARSE_FORM)
