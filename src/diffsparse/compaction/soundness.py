"""What has to hold before a plan is made: finite numbers, and a copy that uses nothing of the user's own model."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from diffsparse.errors import SparsityError
from diffsparse.example import Example, tensors_in
from diffsparse.module_tree import memory_of, modules_by_name, tensors_by_name

_SMALL = 1 << 16


def require_finite(model: nn.Module, tensors: Mapping[str, Tensor], example: Example, answer: Any) -> None:
    """Raise if a tensor of the materialised `model`, or of the example, is not finite.

    Minus infinity is fine in a mask: in an argument, or in a buffer that is no statistic, if what the model answers is
    finite.
    """
    masks = all(map(_is_finite, tensors_in(answer)))
    for number, tensor in enumerate(example.tensors):
        _require(f"tensor {number} of example_inputs ({example})", tensor, masks)
    if all(map(_is_finite, _joined(tensors.values()))):
        return
    # gates by their own names, if they are the cause
    for held, modules in ((tensors_by_name(modules_by_name(model)), modules_by_name(model)), (tensors, {})):
        for name, tensor in held.items():
            statistic = isinstance(modules.get(name.rpartition(".")[0]), _NormBase)
            _require(
                f"'{name}' of {type(model).__name__}", tensor, masks and not tensor.requires_grad and not statistic
            )


def _require(what: str, tensor: Tensor, is_mask: bool) -> None:
    if _is_finite(tensor):
        return
    odd = tensor[~torch.isfinite(tensor)]
    if bool(odd.isnan().any()) or not is_mask or bool((odd > 0).any()):
        found = "NaN" if bool(odd.isnan().any()) else "infinity"
        raise SparsityError(
            f"{what} holds {found} ({odd.numel()} of {tensor.numel()} entries); nothing can be compared with that"
        )


def _is_finite(tensor: Tensor) -> bool:
    if not tensor.is_floating_point():
        return True
    # the sum is fast, but may overflow
    return bool(tensor.detach().sum().isfinite()) or bool(tensor.isfinite().all())


def _joined(tensors: Iterable[Tensor]) -> list[Tensor]:
    """These tensors, small ones joined by kind: one call is faster than hundreds."""
    large: list[Tensor] = []
    small: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() > _SMALL or tensor.layout != torch.strided:
            large.append(tensor)
        elif tensor.is_floating_point():
            small.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach().flatten())
    return large + [torch.cat(alike) for alike in small.values()]


def require_own_tensors(model: nn.Module, strangers: Iterable[Tensor]) -> None:
    """Raise if one of these tensors, which a copy of `model` used and does not hold, is one of `model` itself."""
    places = {id(tensor): memory_of(tensor) for tensor in strangers}
    if not places:
        return
    for name, tensor in tensors_by_name(modules_by_name(model)).items():
        if id(tensor) in places or memory_of(tensor) in {place for place in places.values() if place}:
            raise SparsityError(
                f"a copy of {type(model).__name__} still uses '{name}' of the model itself and cannot be made small: "
                "something reaches it through a global variable, a class attribute or a tensor that shares its memory. "
                "Let the module that uses it hold it as an attribute"
            )
