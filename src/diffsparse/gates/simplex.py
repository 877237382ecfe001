"""A gate whose entries are shares of a whole."""

import torch
from torch import Tensor

from diffsparse.errors import SparsityError
from diffsparse.functional import simplex_threshold
from diffsparse.gates.gate import DROPPED, closed_beta
from diffsparse.gates.vector import VectorGate


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
