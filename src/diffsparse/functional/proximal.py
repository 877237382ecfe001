"""The proximal operators that the paper compares with (Eq. 3, 5 and 7)."""

import torch
from torch import Tensor

from diffsparse.errors import require_floats, require_number
from diffsparse.functional.groups import Dims, group_dims
from diffsparse.functional.threshold import shrink


def proximal_l1(w: Tensor, step: float) -> Tensor:
    r"""Soft threshold (Eq. 3): :math:`\mathrm{sign}(w_i)(|w_i| - \eta\lambda)_+` with `step` = eta * lambda.

    Example:
        >>> proximal_l1(torch.tensor([1.0, -0.25]), 0.5).tolist()
        [0.5, -0.0]
    """
    _check(w, step)
    return shrink(w, step)


def proximal_group_l21(w: Tensor, step: float, dim: Dims = -1) -> Tensor:
    r"""Group soft threshold (Eq. 5): :math:`\bigl((\|w_g\|_2 - \eta\lambda)/\|w_g\|_2\bigr)_+\, w_{g,i}`.

    Entries along `dim` form one group and live or die together. A zero group stays zero.

    Example:
        >>> proximal_group_l21(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0)
        tensor([[2.4000, 3.2000],
                [0.0000, 0.0000]])
    """
    _check(w, step)
    norm = torch.linalg.vector_norm(w, dim=group_dims(w, dim, "w"), keepdim=True)
    factor = torch.relu(norm - step) / torch.where(norm > 0, norm, 1.0)
    return factor * w


def proximal_exclusive_l12(w: Tensor, step: float, dim: Dims = -1) -> Tensor:
    r"""Exclusive lasso (Eq. 7): :math:`\mathrm{sign}(w_{g,i})(|w_{g,i}| - \eta\lambda\|w_g\|_1)_+`.

    Entries along `dim` form one group; the norm is taken before the step.

    Example:
        >>> proximal_exclusive_l12(torch.tensor([1.0, -0.5, 0.1]), 0.125)
        tensor([ 0.8000, -0.3000,  0.0000])
    """
    _check(w, step)
    magnitude = w.abs()
    return shrink(w, step * magnitude.sum(group_dims(w, dim, "w"), keepdim=True), magnitude=magnitude)


def _check(w: Tensor, step: float) -> None:
    require_floats("w", w)
    require_number("a proximal step (learning rate times strength)", step, low=0)
