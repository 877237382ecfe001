"""Which channels: masks with one entry per channel, and numbers for them."""

from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

NO_CHANNELS: Mask = np.zeros(0, bool)


def some(mask: Mask) -> bool:
    """Whether any channel is chosen; this and the next two are much faster than numpy, and called often."""
    return 1 in mask.tobytes()


def every(mask: Mask) -> bool:
    return 0 not in mask.tobytes()


def how_many(mask: Mask) -> int:
    return mask.tobytes().count(1)


def without(mask: Mask, others: Mask | None) -> Mask:
    """The mask without the channels of another one, if there is one."""
    return mask if others is None else mask & ~others


def indices(mask: Mask) -> list[int]:
    return mask.nonzero()[0].tolist()


def single_number(tensor: Tensor) -> float | None:
    """What a tensor of one number holds."""
    return float(tensor.detach()) if tensor.numel() == 1 and tensor.is_floating_point() else None


def as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The tensor for numpy, which does not know bfloat16; memory is shared where possible."""
    return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(force=True))
