"""Gates whose entries compete along given dimensions, with one threshold per group: signed, or on the simplex."""

from abc import abstractmethod
from collections.abc import Sequence
from math import log, prod
from typing import Self

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_number, require_whole
from diffsparse.functional import signed_threshold, simplex_threshold
from diffsparse.functional.groups import Dims, group_dims, initial_alpha, initial_beta
from diffsparse.gates.gate import DROPPED, Gate, checked_values, closed_beta, gate_dtype, require_room, values_dtype


class VectorGate(Gate):
    """A gate over `size` entries (an int or a shape) that compete along `dim`; one `beta` per group."""

    beta: nn.Parameter
    dims: tuple[int, ...]
    keeps_sizes = False
    """Whether `shift_threshold` leaves values that stay alive as they are. A batch norm makes up for gates that shrink;
    where there is none, whatever the network computes would shrink with them."""
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

    @torch.no_grad()
    def set_alive(self, alive: Tensor) -> None:
        """Make these entries, shape (groups, entries), live alike and the others zero."""
        count = alive.sum(-1).clamp_min(1)
        half_of_a_share = torch.logit(0.5 / count.to(self.beta))
        self.set_groups(self._alpha_of(alive).to(self.alpha), half_of_a_share)

    def _alpha_of(self, alive: Tensor) -> Tensor:
        """`alpha` with equal shares for these entries and next to none for the others."""
        raise NotImplementedError


class SignedGate(VectorGate):
    r"""Owns `alpha` and `beta` of a signed gate (Eq. 12): :math:`a = \mathrm{sign}(\alpha)(|\alpha| -
    \sigma(\beta)\|\alpha\|_1)_+`.

    Args:
        size: number of entries, or the shape of a batch of groups.
        dim: dimension or dimensions of one competition group.
        value: what every entry starts at (the paper: 0.5); not 0, where a gate gets no gradient.
        rgf: `elu_alpha` of rectified gradient flow, or None.

    Shape: `gate()` has the shape `size`; `beta` has that shape without `dim`.

    Example:
        >>> SignedGate(3)().tolist()
        [0.5, 0.5, 0.5]
        >>> SignedGate.from_values([0.7, 0.0, -0.2])().detach()
        tensor([ 0.7000,  0.0000, -0.2000])
    """

    smallest_step = 0.0

    def __init__(
        self,
        size: int | Sequence[int],
        *,
        dim: Dims = -1,
        value: float = 0.5,
        rgf: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(size, dim=dim, rgf=rgf, device=device, dtype=dtype)
        start, limits = abs(initial_alpha(self.group_size, value)), torch.finfo(self.alpha.dtype)
        if start < limits.tiny or start * self.group_size > limits.max:
            raise SparsityError(
                f"the value a gate starts at must be neither zero, where it gets no gradient, nor out of the range of "
                f"{self.alpha.dtype} (the paper: 0.5), got {value!r}"
            )
        self.value = value
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every entry back to `value`, whatever the gate started at."""
        self.alpha.detach().fill_(initial_alpha(self.group_size, self.value))
        self.beta.detach().fill_(initial_beta(self.group_size))

    def magnitudes(self) -> Tensor:
        return self.groups(self.alpha.detach().abs())[0]

    def scale_magnitudes(self, logarithm: Tensor) -> None:
        (rows,) = self.groups(self.alpha.detach())
        self.set_groups(rows * logarithm.exp(), self.beta)

    def _alpha_of(self, alive: Tensor) -> Tensor:
        return alive

    def _threshold_of(self, alpha: Tensor) -> Tensor:
        share = self.beta.double().sigmoid() * self.alpha.double().abs().sum() / alpha.double().abs().sum()
        return torch.logit(share)

    @torch.no_grad()
    def shift_threshold(self, by: Tensor) -> None:
        r"""With `keeps_sizes`, an entry that stays alive keeps its value: :math:`|\alpha| = |a| + t`, where t is the
        threshold that the shift leads to, and `beta` then makes t that of the new `alpha`. Ranks stay as they are.
        """
        if not self.keeps_sizes:
            super().shift_threshold(by)
            return
        (rows,), (values,) = self.groups(self.alpha.double()), self.groups(self().double())
        share = (self.beta.double() + by.to(self.beta.device)).sigmoid().view(-1, 1)
        threshold = share * rows.abs().sum(-1, keepdim=True)
        stays = (rows.abs() > threshold) & (values != 0)
        rows = torch.where(stays, rows.sign() * (values.abs() + threshold), rows)
        total = rows.abs().sum(-1, keepdim=True)
        self.set_groups(rows, torch.logit(torch.where(total > 0, threshold / total, share)))

    def forward(self) -> Tensor:
        return signed_threshold(self.alpha, self.beta, self.dims, rgf=self.rgf)

    def _solve(self, rows: Tensor, start: float) -> tuple[Tensor, Tensor]:
        r"""With m survivors that sum to A in magnitude, s = sigmoid(beta) and dropped entries at half the threshold t,

        .. math:: t = \frac{sA}{1 - s\,(m + \tfrac12(n-m))}, \qquad
                  \alpha_i = a_i + \mathrm{sign}(a_i)\,t \text{ for survivors},\; \tfrac12 t \text{ for the dropped}
        """
        n = self.group_size
        beta = rows.new_full(rows.shape[:1], start)
        fraction = beta.sigmoid()
        alive = (rows != 0).sum(-1)
        threshold = (fraction * rows.abs().sum(-1) / (1 - fraction * (alive + DROPPED * (n - alive)))).unsqueeze(-1)
        alpha = torch.where(rows != 0, rows + rows.sign() * threshold, DROPPED * threshold)
        if n > 1:
            dead = alive == 0
            beta = torch.where(dead, closed_beta(n), beta)
            alpha = torch.where(dead.unsqueeze(-1), alpha.new_tensor(0.5), alpha)
        return alpha, beta


class SimplexGate(VectorGate):
    """Owns `alpha` and `beta` of a gate on the simplex (Eq. 9-11): exp, threshold, normalise.

    Args:
        size: number of entries, or the shape of a batch of groups.
        dim: dimension or dimensions of one competition group.
        rgf: `elu_alpha` of rectified gradient flow, or None.

    Starts uniform at 1/n. Penalise it with `Lp(p < 1)`: its l1 norm is always 1.

    Example:
        >>> SimplexGate(4)().tolist()
        [0.25, 0.25, 0.25, 0.25]
        >>> SimplexGate.from_values([0.75, 0.25, 0.0])().detach()
        tensor([0.7500, 0.2500, 0.0000])
    """

    def magnitudes(self) -> Tensor:
        return self.groups(self.alpha.detach())[0].softmax(-1)

    def scale_magnitudes(self, logarithm: Tensor) -> None:
        (rows,) = self.groups(self.alpha.detach())
        self.set_groups(rows + logarithm, self.beta)

    def _alpha_of(self, alive: Tensor) -> Tensor:
        return torch.where(alive, 0.0, -100.0)

    def _threshold_of(self, alpha: Tensor) -> Tensor:
        left = torch.logsumexp(alpha.double(), 0) - torch.logsumexp(self.alpha.double(), 0)
        return torch.logit(self.beta.double().sigmoid() / left.exp())

    def forward(self) -> Tensor:
        return simplex_threshold(self.alpha, self.beta, self.dims, rgf=self.rgf)

    def _require_possible(self, rows: Tensor) -> None:
        if bool((rows < 0).any()):
            raise SparsityError(f"values of a simplex gate must not be negative, got {rows.min().item():g}")
        sums = rows.sum(-1)
        if not torch.allclose(sums, torch.ones_like(sums), atol=1e-4):
            worst = sums[(sums - 1).abs().argmax()].item()
            raise SparsityError(f"values of a simplex gate must sum to 1 in every group, got a sum of {worst:g}")

    def _solve(self, rows: Tensor, start: float) -> tuple[Tensor, Tensor]:
        r"""With m survivors and s = sigmoid(beta): :math:`\alpha_i = \log(s + T a_i)` for survivors and
        :math:`\log(s/2)` for the dropped, where :math:`T = 1 - s(m + (n-m)/2)`. A group of zeros has equal alpha.
        """
        n, sums = self.group_size, rows.sum(-1, keepdim=True)
        beta = rows.new_full(rows.shape[:1], start)
        fraction = beta.sigmoid().unsqueeze(-1)
        alive = (rows > 0).sum(-1, keepdim=True)
        total = (1 - fraction * (alive + DROPPED * (n - alive))) / torch.where(sums > 0, sums, 1.0)
        alpha = torch.where(rows > 0, fraction + total * rows, DROPPED * fraction).log()
        return alpha, torch.where(alive.squeeze(-1) == 0, closed_beta(n), beta)
