"""Competition groups: which dimensions compete, where their thresholds go, and in which precision."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from diffsparse.errors import SparsityError, require_floats

Dims = int | tuple[int, ...]


def group_dims(alpha: Tensor, dim: Dims, name: str = "alpha") -> tuple[int, ...]:
    """The dimensions of `alpha` that form one competition group, sorted and counted from 0."""
    require_floats(name, alpha)
    given = tuple(dim) if isinstance(dim, tuple | list) else (dim,)
    if alpha.dim() == 0 or not given:
        raise SparsityError(f"{name} needs at least one dimension, got shape {tuple(alpha.shape)} and dim={dim}")
    for d in given:
        if not isinstance(d, int) or not -alpha.dim() <= d < alpha.dim():
            raise SparsityError(f"dim={d!r} is out of range for {name} of shape {tuple(alpha.shape)}")
    dims = tuple(sorted({d % alpha.dim() for d in given}))
    if len(dims) != len(given):
        raise SparsityError(f"dim={dim} names a dimension of {name} twice")
    if any(alpha.shape[d] == 0 for d in dims):
        raise SparsityError(f"a competition group needs at least one entry, got {name} of shape {tuple(alpha.shape)}")
    return dims


def align_beta(beta: Tensor, alpha: Tensor, dims: tuple[int, ...], name: str = "beta") -> Tensor:
    """`beta` reshaped to broadcast against `alpha`: one threshold per group, or a scalar for all groups."""
    require_floats(name, beta)
    expected = tuple(size for d, size in enumerate(alpha.shape) if d not in dims)
    if beta.dim() != 0 and tuple(beta.shape) != expected:
        raise SparsityError(
            f"{name} must be a scalar or have one entry per group, shape {expected}, "
            f"for alpha of shape {tuple(alpha.shape)}; got shape {tuple(beta.shape)}"
        )
    if beta.dim() == 0:
        return beta
    for d in dims:
        beta = beta.unsqueeze(d)
    return beta


def in_float32(x: Tensor) -> Tensor:
    """`x` in float32 if it is half precision: float16 cannot hold a threshold of 1/(n^2+n)."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Turns autocast off on `device`; it would compute matrix products in half precision."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
