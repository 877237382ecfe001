"""The one shape behind Eq. 3, 7 and 12: magnitudes shrink by a threshold, signs stay."""

from torch import Tensor

from diffsparse.functional.rectify import gated_relu


def shrink(
    x: Tensor, threshold: Tensor | float, rgf: float | None = None, *, magnitude: Tensor | None = None
) -> Tensor:
    """sign(x) * relu(|x| - threshold), with rectified flow if `rgf` is given; `magnitude` is |x| if it is known."""
    magnitude = x.abs() if magnitude is None else magnitude
    return x.sign() * gated_relu(magnitude - threshold, rgf)
