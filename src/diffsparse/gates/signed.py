"""A gate whose entries have a sign: the scale of a channel."""

from collections.abc import Sequence

import torch
from torch import Tensor

from diffsparse.errors import SparsityError
from diffsparse.functional import signed_threshold
from diffsparse.functional.groups import Dims, initial_alpha, initial_beta
from diffsparse.gates.gate import DROPPED, closed_beta
from diffsparse.gates.vector import VectorGate

ABOVE = 1e-3
"""How far above its threshold an entry comes back to life, as a share of the threshold."""
BUNCHED = 1e-3
"""If so little of the sum of a group is above the threshold, what its entries have in common cannot be told."""


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
    choosable = True

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

    @torch.no_grad()
    def let_live(self, alive: Tensor) -> None:
        """The threshold stays where it is; entries that die go to half of it, and others a little above it."""
        (rows,), (values,) = self.groups(self.alpha.double()), self.groups(self())
        threshold = self.beta.double().sigmoid().view(-1, 1) * rows.abs().sum(-1, keepdim=True)
        place = threshold * torch.where(alive, 1 + ABOVE, DROPPED)
        some = alive.any(-1, keepdim=True)
        rows = torch.where(some & (alive == (values != 0)), rows, torch.where(rows < 0, -place, place))
        beta = torch.logit(threshold / rows.abs().sum(-1, keepdim=True))
        # entries that all die become alike, and no threshold of theirs stays where it is
        beta = torch.where(some, beta, closed_beta(self.group_size))
        self.set_groups(rows, beta.squeeze(-1))

    @torch.no_grad()
    def effects(self) -> Tensor | None:
        r"""With :math:`g_i` for the derivative by a live value, :math:`s = \sigma(\beta)` and m live entries,
        :math:`\partial L/\partial|\alpha_i| = g_i - s\sum_j g_j`, so that :math:`\sum_j g_j` is the sum of these
        derivatives over live entries, divided by :math:`1 - ms`.
        """
        if self.alpha.grad is None:
            return None
        (alpha,), (values,), (slopes,) = (self.groups(each) for each in (self.alpha, self(), self.alpha.grad))
        slopes = torch.where(values != 0, slopes * alpha.sign(), 0.0)
        share = self.beta.sigmoid().view(-1, 1)
        above = 1 - share * (values != 0).sum(-1, keepdim=True)
        common = torch.where(above > BUNCHED, slopes.sum(-1, keepdim=True) / above, 0.0)
        return values.abs() * (slopes + share * common)

    @torch.no_grad()
    def room(self) -> tuple[Tensor, Tensor]:
        sizes, beta = self.magnitudes(), self.beta.view(-1, 1)
        shares = sizes / sizes.sum(-1, keepdim=True)
        above = torch.where(shares > beta.sigmoid(), torch.logit(shares) - beta, 0.0)
        values = self.groups(self())[0].abs()
        count = (values != 0).sum(-1)
        means = (torch.where(count > 0, each.sum(-1) / count, torch.inf) for each in (values, above))
        return next(means), next(means)

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
