"""The regularisers R(a) of the paper, on rows of competing entries."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from diffsparse.errors import SparsityError, require_number, require_whole
from diffsparse.functional import proximal_exclusive_l12, proximal_group_l21, proximal_l1
from diffsparse.registry import Registry


class Norm(ABC):
    """R(a) of gate values of shape (..., n), summed over all rows; a scalar with finite gradients everywhere.

    The derivative with respect to a zero entry is zero: only the threshold or the normalisation that a dropped entry
    shares with others moves it. Subclass it for a norm of your own; `register_norm` makes it a choice of the command
    line.
    """

    @classmethod
    def from_options(cls, group_size: int) -> Self:
        """The norm that the command line's options describe."""
        return cls()

    @abstractmethod
    def __call__(self, a: Tensor) -> Tensor:
        """R(a), a scalar."""

    def proximal(self, w: Tensor, step: float) -> Tensor:
        """The proximal operator for weights of shape (..., n); raises if no closed form is known."""
        raise SparsityError(f"{self!r} has no closed-form proximal operator; use L1, GroupL21 or ExclusiveL12")

    def check_size(self, n: int, name: str) -> None:  # noqa: B027
        """Raise if groups of `n` entries do not fit this norm; `name` is what the message calls the gate."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class L1(Norm):
    r"""Individual entries die (Eq. 2): :math:`R(a) = \sum_i |a_i|`.

    Example:
        >>> L1()(torch.tensor([0.5, 0.0, -0.25])).item()
        0.75
    """

    def __call__(self, a: Tensor) -> Tensor:
        return a.abs().sum()

    def proximal(self, w: Tensor, step: float) -> Tensor:
        return proximal_l1(w, step)


class ExclusiveL12(Norm):
    r"""Entries of a row compete (Eq. 6): :math:`R(a) = \frac12 \sum_g \bigl(\sum_i |a_{g,i}|\bigr)^2`.

    A group is one competition group of a gate, a row of the values.

    Example:
        >>> ExclusiveL12()(torch.tensor([[1.0, -1.0], [0.5, 0.5]])).item()
        2.5
    """

    def __call__(self, a: Tensor) -> Tensor:
        return 0.5 * a.abs().sum(-1).square().sum()

    def proximal(self, w: Tensor, step: float) -> Tensor:
        return proximal_exclusive_l12(w, step)


class Lp(Norm):
    r"""For gates that are normalised (Eq. 14): :math:`R(a) = \sum_g \bigl(\sum_i |a_{g,i}|^p\bigr)^{1/p}`.

    On a row that sums to 1 and `p < 1` it lies between 1 (one survivor) and :math:`n^{1/p - 1}` (uniform). Zeros are
    masked before the power, whose derivative there is infinite.

    Example:
        >>> Lp(0.5)(torch.tensor([0.25, 0.25, 0.5, 0.0]))
        tensor(2.9142)
    """

    def __init__(self, p: float = 0.5) -> None:
        self.p = require_number("p", p, above=0)

    def __call__(self, a: Tensor) -> Tensor:
        # The value does not depend on the factor taken out of a row, so that detaching it leaves the gradient exact;
        # without it the powers of a large p underflow.
        largest = a.detach().abs().amax(-1, keepdim=True)
        relative = (a.abs() / torch.where(largest > 0, largest, 1.0)).clamp_min(torch.finfo(a.dtype).tiny)
        powers = torch.where(a != 0, relative.pow(self.p), 0.0).sum(-1, keepdim=True)
        return (largest * torch.where(largest > 0, powers, 1.0).pow(1 / self.p)).sum()

    def __repr__(self) -> str:
        return f"Lp({self.p})"


class GroupL21(Norm):
    r"""Entries of a group live or die together (Eq. 4): :math:`R(a) = \sum_g \|a_g\|_2`.

    Args:
        size: consecutive groups of this many entries; the last one may be smaller.
        groups: or explicit groups, each a sequence of indices into a row. Entries in no group are not penalised.

    Example:
        >>> GroupL21(size=2)(torch.tensor([3.0, 4.0, 0.0, 0.0])).item()
        5.0
        >>> GroupL21(groups=[[0, 2], [1, 3]])(torch.tensor([3.0, 0.0, 4.0, 0.0])).item()
        5.0
    """

    def __init__(self, size: int | None = None, *, groups: Sequence[Sequence[int]] | None = None) -> None:
        if (size is None) == (groups is None):
            raise SparsityError(f"GroupL21 takes either a size or explicit groups, got size={size}, groups={groups}")
        self.size = None if size is None else require_whole("the size of GroupL21", size, low=1)
        self.explicit = None if groups is None else _checked(groups)

    @classmethod
    def from_options(cls, group_size: int) -> Self:
        return cls(size=group_size)

    def split(self, a: Tensor) -> Tensor:
        """Rows (..., n) as groups (..., groups, entries), zeros in the places that groups do not fill."""
        if self.size is not None:
            return F.pad(a, (0, -a.shape[-1] % self.size)).reshape(*a.shape[:-1], -1, self.size)
        assert self.explicit is not None
        widest = max(len(group) for group in self.explicit)
        # the entry behind the last one is the padding
        index = torch.tensor([[*group, *[a.shape[-1]] * (widest - len(group))] for group in self.explicit])
        return F.pad(a, (0, 1))[..., index.to(a.device)]

    def __call__(self, a: Tensor) -> Tensor:
        self._check_rows(a, "values")
        # vector_norm has gradient 0 at a zero group, where sqrt of a sum would give NaN
        norms: Tensor = torch.linalg.vector_norm(self.split(a), dim=-1)
        return norms.sum()

    def proximal(self, w: Tensor, step: float) -> Tensor:
        self._check_rows(w, "weights")
        if self.size is not None:
            return proximal_group_l21(self.split(w), step).flatten(-2)[..., : w.shape[-1]]
        assert self.explicit is not None
        shrunk = w.clone()
        for group in self.explicit:
            shrunk[..., list(group)] = proximal_group_l21(w[..., list(group)], step)
        return shrunk

    def _check_rows(self, a: Tensor, name: str) -> None:
        if a.dim() == 0:
            raise SparsityError(f"{self!r} needs {name} of shape (..., n), got a single number")
        self.check_size(a.shape[-1], name)

    def check_size(self, n: int, name: str) -> None:
        if self.explicit is not None and (top := max(map(max, self.explicit))) >= n:
            raise SparsityError(f"{self!r} names entry {top}, but '{name}' has groups of {n} entries")

    def __repr__(self) -> str:
        return f"GroupL21(size={self.size})" if self.explicit is None else f"GroupL21(groups={self.explicit})"


def _checked(groups: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Explicit groups as tuples of ints; raises unless they are non-empty, disjoint and of indices."""
    try:
        explicit = tuple(tuple(require_whole("an index of GroupL21", i, low=0) for i in group) for group in groups)
    except TypeError:
        raise SparsityError(f"explicit groups must be sequences of indices, got {groups!r}") from None
    entries = [i for group in explicit for i in group]
    if not explicit or not all(explicit) or len(set(entries)) != len(entries):
        raise SparsityError(f"explicit groups must be non-empty and disjoint, got {explicit}")
    return explicit


NORMS = Registry[type[Norm]]("norm")
register_norm = NORMS.add
"""Make a norm a choice of `diffsparse train --norm`."""

register_norm("l1", L1)
register_norm("l21", GroupL21)
register_norm("l12", ExclusiveL12)
register_norm("lp", Lp)
