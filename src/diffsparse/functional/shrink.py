"""The one shape behind Eq. 3, 7 and 12: magnitudes shrink by a threshold, signs stay."""

from torch import Tensor

from diffsparse.functional.rectify import gated_relu


def shrink(x: Tensor, threshold: Tensor | float, rgf: float | None = None) -> Tensor:
    """sign(x) * relu(|x| - threshold), with rectified gradient flow if `rgf` is given."""
    return x.sign() * gated_relu(x.abs() - threshold, rgf)
