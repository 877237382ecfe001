"""Initial values of gates."""

import math

import torch
from torch import Tensor

from diffsparse.errors import require_number, require_whole


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
