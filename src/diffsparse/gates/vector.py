"""Gates whose entries compete along given dimensions, with one threshold per group."""

from abc import abstractmethod
from collections.abc import Sequence
from math import log, prod
from typing import Self

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_number, require_whole
from diffsparse.functional.groups import Dims, group_dims, initial_beta
from diffsparse.gates.gate import Gate, checked_values, gate_dtype, require_room, values_dtype


class VectorGate(Gate):
    """A gate over `size` entries (an int or a shape) that compete along `dim`; one `beta` per group."""

    beta: nn.Parameter
    dims: tuple[int, ...]
    keeps_sizes = False
    """Whether `shift_threshold` leaves values that stay alive as they are. A batch norm makes up for gates that shrink;
    where there is none, whatever the network computes would shrink with them."""
    choosable = False
    """Whether it has `let_live`."""
    kind = "channels"
    """What an entry stands for."""

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

    @classmethod
    def from_values(
        cls,
        values: Tensor | Sequence[float],
        *,
        dim: Dims = -1,
        rgf: float | None = None,
        threshold: float | None = None,
    ) -> Self:
        """A gate that starts at `values`, up to float rounding, with the paper's `beta`.

        A `threshold` above 0 and up to 0.9 is another start for `sigmoid(beta)`: that many times a mean share, 1/n. An
        entry dies where its share falls to sigmoid(beta), and 1/(n^2+n) is far below any share of a large group.

        The groups of a `SimplexGate` must be non-negative with sum 1. A non-zero value too small to see beside the
        threshold becomes the smallest step that can be seen. In a `SignedGate`, a group of zeros starts with equal
        `alpha` under a threshold 1.5 times as high; a group of a single zero has `alpha = 0` and is dead for good,
        even with `rgf`.
        """
        given = checked_values(values)
        gate = cls(given.shape, dim=dim, rgf=rgf, device=given.device, dtype=values_dtype(values))
        gate._require_possible(*gate.groups(given))
        if threshold is None:
            gate.set_values(given)
        else:
            share = require_number("threshold", threshold, above=0, high=0.9) / gate.group_size
            gate._set_values(given, log(share / (1 - share)))
        return gate

    def _require_possible(self, rows: Tensor) -> None:
        """Raise if no gate of this kind has the values `rows` (groups, entries)."""

    def set_values(self, values: Tensor) -> None:
        self._set_values(checked_values(values), initial_beta(self.group_size))

    @torch.no_grad()
    def _set_values(self, given: Tensor, beta: float) -> None:
        alpha, betas = self._solve(self.groups(given)[0], beta)
        require_room(alpha, self.alpha.dtype)
        self.set_groups(alpha, betas)
        self._revive(given)

    @abstractmethod
    def _solve(self, rows: Tensor, start: float) -> tuple[Tensor, Tensor]:
        """`alpha` and `beta` of the gate whose values are `rows` (groups, entries), in float64.

        `beta` is `start` for groups that are not all zero.
        """

    def groups(self, values: Tensor) -> tuple[Tensor, ...]:
        trailing = tuple(range(-len(self.dims), 0))
        return (values.movedim(self.dims, trailing).reshape(-1, self.group_size),)

    def set_groups(self, alpha: Tensor, beta: Tensor) -> None:
        """Write `alpha` of shape (groups, entries) and `beta` of shape (groups,) into the parameters, in place."""
        moved = self.alpha.detach().movedim(self.dims, tuple(range(-len(self.dims), 0)))
        moved.copy_(alpha.reshape(moved.shape))
        self.beta.detach().copy_(beta.reshape(self.beta.shape))

    def magnitudes(self) -> Tensor:
        """Numbers of shape (groups, entries); an entry lives if its share of its group's sum is above sigmoid(beta)."""
        raise NotImplementedError

    def scale_magnitudes(self, logarithm: Tensor) -> None:
        """Multiply magnitudes by the exponential of `logarithm` (groups, entries), in place."""
        raise NotImplementedError

    @torch.no_grad()
    def regated(self, ordinary: nn.Module, kept: Tensor) -> Self:
        """This gate with the entries `kept` alone, for a gate of one dimension; values stay as they are."""
        new = type(self)(len(kept), rgf=self.rgf, device=self.alpha.device, dtype=self.alpha.dtype)
        new.train(self.training)
        for key, parameter in self.named_parameters(recurse=False):
            new.get_parameter(key).requires_grad_(parameter.requires_grad)
        new.keeps_sizes = self.keeps_sizes
        alpha = self.alpha.index_select(0, kept)
        new.set_groups(alpha, self._threshold_of(alpha))
        return new

    def _threshold_of(self, alpha: Tensor) -> Tensor:
        """`beta` of a gate with some of this gate's `alpha`, such that their values stay."""
        raise NotImplementedError

    @torch.no_grad()
    def shift_threshold(self, by: Tensor) -> None:
        """Add `by`, of the shape of `beta`, to it: entries die, or come back to life."""
        self.beta.add_(by.to(self.beta))

    def let_live(self, alive: Tensor) -> None:
        """Let just these entries, shape (groups, entries), live, whatever their size.

        Values of those that live on stay; others begin to live next to zero.
        """
        raise NotImplementedError

    @torch.no_grad()
    def set_alive(self, alive: Tensor) -> None:
        """Make these entries, shape (groups, entries), live alike and the others zero."""
        count = alive.sum(-1).clamp_min(1)
        half_of_a_share = torch.logit(0.5 / count.to(self.beta))
        self.set_groups(self._alpha_of(alive).to(self.alpha), half_of_a_share)

    def _alpha_of(self, alive: Tensor) -> Tensor:
        """`alpha` with equal shares for these entries and next to none for the others."""
        raise NotImplementedError

    def effects(self) -> Tensor | None:
        """How much the loss changes, to first order, if an entry dies: its value times the derivative of the loss.

        Shape (groups, entries), from the gradient of `alpha`; None if that is not known.
        """
        return None

    def room(self) -> tuple[Tensor, Tensor]:
        """The mean live value of each group, and how far live entries lie above the threshold, on the scale of beta.

        Infinite for a group in which nothing lives, and for gates of a kind for which it does not matter.
        """
        unknown = self.beta.detach().flatten().new_full((self.beta.numel(),), torch.inf)
        return unknown, unknown
