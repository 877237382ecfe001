"""The paper's equations as pure functions."""

from diffsparse.functional.balance import balanced_limit, balanced_normalize
from diffsparse.functional.groups import initial_alpha_beta
from diffsparse.functional.threshold import (
    matrix_threshold,
    proximal_exclusive_l12,
    proximal_group_l21,
    proximal_l1,
    rectified_relu,
    signed_threshold,
    simplex_threshold,
)

__all__ = [
    "balanced_limit",
    "balanced_normalize",
    "initial_alpha_beta",
    "matrix_threshold",
    "proximal_exclusive_l12",
    "proximal_group_l21",
    "proximal_l1",
    "rectified_relu",
    "signed_threshold",
    "simplex_threshold",
]
