"""Gates whose entries compete along given dimensions, with one threshold per group."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_whole
from diffsparse.functional.groups import Dims, group_dims, initial_beta
from diffsparse.gates.gate import Gate, gate_dtype

# A dropped entry starts half-way to its threshold: it can come back, but not by rounding.
DROPPED = 0.5


class VectorGate(Gate):
    """A gate over `size` entries (an int or a shape) that compete along `dim`; one `beta` per group."""

    beta: nn.Parameter
    dims: tuple[int, ...]

    def __init__(
        self,
        size: int | Sequence[int],
        *,
        dim: Dims = -1,
        rgf: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(rgf)
        shape = tuple(size) if isinstance(size, Sequence) else (size,)
        if not shape:
            raise SparsityError(f"a gate needs at least one dimension, got size={size}")
        for n in shape:
            require_whole(f"every dimension of size={size}", n, low=1)
        self.alpha = nn.Parameter(torch.zeros(shape, device=device, dtype=gate_dtype(dtype)))
        self.dims = group_dims(self.alpha, dim)
        self.group_size = prod(shape[d] for d in self.dims)
        batch = tuple(n for d, n in enumerate(shape) if d not in self.dims)
        self.beta = nn.Parameter(self.alpha.new_full(batch, initial_beta(self.group_size)).detach())

    def groups(self, values: Tensor) -> tuple[Tensor, ...]:
        trailing = tuple(range(-len(self.dims), 0))
        return (values.movedim(self.dims, trailing).reshape(-1, self.group_size),)

    def set_groups(self, alpha: Tensor, beta: Tensor) -> None:
        """Write `alpha` of shape (groups, entries) and `beta` of shape (groups,) into the parameters, in place."""
        moved = self.alpha.detach().movedim(self.dims, tuple(range(-len(self.dims), 0)))
        moved.copy_(alpha.reshape(moved.shape))
        self.beta.detach().copy_(beta.reshape(self.beta.shape))
