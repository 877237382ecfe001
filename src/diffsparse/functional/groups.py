"""Competition groups: which dimensions compete, where thresholds go and start, and in which precision."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from diffsparse.errors import SparsityError, require_floats, require_number, require_whole

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
    if beta.dim() == 0:
        return beta
    if tuple(beta.shape) != expected:
        shapes = f"shape {expected}, for alpha of shape {tuple(alpha.shape)}; got shape {tuple(beta.shape)}"
        raise SparsityError(f"{name} must be a scalar or have one entry per group, {shapes}")
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


def initial_beta(n: int) -> float:
    """beta = -log(n^2 + n - 1), so that sigmoid(beta) = 1 / (n^2 + n)."""
    require_whole("n, the number of entries of a gate,", n, low=1)
    return -math.log(n * n + n - 1)


def initial_alpha(n: int, value: float) -> float:
    """alpha = value (n + 1) / n; together with `initial_beta`, every entry of a signed gate equals `value`."""
    return require_number("the value a gate starts at", value) * (n + 1) / n


def initial_alpha_beta(
    n: int, value: float = 0.5, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    r"""The paper's initialisation of a signed gate: every entry of the gate equals `value`.

    .. math:: \alpha_i = \texttt{value}\,\frac{n+1}{n}, \qquad \beta = -\log(n^2 + n - 1)

    Returns `alpha` of shape (n,) and the scalar `beta`, the arguments of `signed_threshold`.

    Edges: `n = 1` gives alpha = 2 * value and beta = 0; a gate at `value = 0` gets no gradient and stays there.

    Example:
        >>> from diffsparse.functional import signed_threshold
        >>> signed_threshold(*initial_alpha_beta(4)).tolist()
        [0.5, 0.5, 0.5, 0.5]
    """
    beta = initial_beta(n)
    alpha = torch.full((n,), initial_alpha(n, value), device=device, dtype=dtype)
    return alpha, torch.tensor(beta, device=device, dtype=dtype)
