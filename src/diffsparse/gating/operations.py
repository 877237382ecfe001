"""Operations with weights, as PyTorch's dispatcher sees them: inside functions of several operations, too."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from diffsparse.module_tree import memory_of

aten = torch.ops.aten
PRODUCTS = frozenset({aten.mm, aten.addmm, aten.bmm, aten.baddbmm})
"""Products of matrices."""


@dataclass(frozen=True)
class Weighted:
    """A call of a layer: a matrix product or a convolution with a parameter."""

    name: str
    """Of the parameter."""
    offset: int
    """Where in the parameter the weights begin, if the call uses a part of it."""
    operand: Tensor
    """What the weights are applied to."""
    axis: int
    """The dimension of operand and output that holds channels."""
    input_dim: int | None
    """The dimension of the parameter that holds inputs; None if the call uses a part of it, or groups."""


class Parameters:
    """The parameters of a model by where their memory lies."""

    def __init__(self, model: nn.Module) -> None:
        self._at = {memory_of(parameter): (name, parameter) for name, parameter in model.named_parameters()}

    def find(self, tensor: Tensor) -> tuple[str, Tensor] | None:
        return self._at.get(memory_of(tensor))

    def weighted(self, func: Any, args: tuple[Any, ...]) -> Weighted | None:
        """The call of a layer that `func` is; None for any other operation, and for convolutions with groups."""
        if func is aten.convolution.default:
            return self._convolution(args)
        if func.overloadpacket not in {aten.mm, aten.addmm}:
            return None
        operand, weight = args[-2:]
        found = self.find(weight)
        if found is None or self.find(operand) is not None:
            return None
        name, stored = found
        input_dim = None
        if (weight.shape, weight.stride()) == (stored.shape, stored.stride()):
            input_dim = 0
        elif (weight.shape[::-1], weight.stride()[::-1]) == (stored.shape, stored.stride()):
            input_dim = 1
        return Weighted(name, weight.storage_offset(), operand, 1, input_dim)

    def _convolution(self, args: tuple[Any, ...]) -> Weighted | None:
        operand, weight, groups, transposed = args[0], args[1], args[8], args[6]
        found = self.find(weight)
        if found is None or groups != 1:
            return None
        whole = weight.shape == found[1].shape
        return Weighted(found[0], weight.storage_offset(), operand, 1, (0 if transposed else 1) if whole else None)


@contextmanager
def written_out() -> Iterator[None]:
    """Attention runs as single products and a softmax, not as one kernel that a dispatch mode cannot see into."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
