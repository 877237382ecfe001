"""Where a position lies between the borders of an image: sizes, windows, and classes of positions.

A convolution with zero padding makes of a constant image one that varies near the border only. Its entry at position
`o` depends on how far `o` is from the first position, up to some distance, and on how many entries of the image lie
behind its window, up to some number. These two capped distances are the *class* of the position. A table with one entry
per class is right at every size: also where both borders overlap, and where a stride leaves some pixels over.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Window:
    """How an operator reads one dimension: a window that moves over it, with padding at both ends."""

    kernel: int
    stride: int = 1
    before: int = 0
    after: int = 0
    dilation: int = 1
    ceil: bool = False
    """Whether the last window may reach beyond the padding."""

    @property
    def reach(self) -> int:
        """From the first entry that it reads to the last."""
        return self.dilation * (self.kernel - 1)

    @property
    def least(self) -> int:
        """The smallest size for which there is a window."""
        fits = self.reach + 1 - self.before - self.after
        return max(fits - self.stride + 1, 1 - self.before) if self.ceil else fits


@dataclass(eq=False)
class Size:
    """The size of a dimension; two dimensions with the same object have the same size, for every input.

    Either nothing is known of it, or it is the number of windows that fit into another one, `of`:
    `(n - least) // stride + 1`.
    """

    of: "Size | None" = None
    stride: int = 1
    least: int = 1
    depth: int = 0
    _made: dict[tuple[int, int], "Size"] = field(default_factory=dict, repr=False)

    def through(self, window: Window) -> "Size":
        """How many windows there are."""
        key = window.stride, window.least
        if key == (1, 1):
            return self
        if key not in self._made:
            self._made[key] = Size(self, *key, self.depth + 1)
        return self._made[key]


@dataclass(frozen=True)
class Axis:
    """One dimension of a table: classes of positions instead of positions.

    For an image of size n, position o has class `(min(o, left), min(n - least - stride * o, right))`.
    """

    size: Size
    """How many positions there are."""
    base: Size
    """The size of the image, n."""
    stride: int = 1
    least: int = 1
    left: int = 0
    right: int = 0

    @classmethod
    def flat(cls, size: Size) -> "Axis":
        """All positions are alike."""
        return cls(size, size)

    @property
    def is_flat(self) -> bool:
        return self.left == self.right == 0

    @property
    def classes(self) -> int:
        return (self.left + 1) * (self.right + 1)

    def through(self, window: Window) -> "tuple[Axis, Tensor, Tensor]":
        """The axis of what windows make; for each of its classes and each entry of the window, the class there.

        That class is -1 for padding. The last tensor says which entries lie in the image or in its padding.
        """
        more = self.stride * (window.least - 1)
        # of the last entry of a window, relative to the window
        behind = more + self.stride * (window.before - window.reach)
        size = self.size.through(window)
        left, right = -(-(self.left + window.before) // window.stride), max(0, self.right - behind)
        axis = Axis(size, self.base, self.stride * window.stride, self.least + more, max(0, left), right)
        first, rest = axis._grid()
        steps = window.dilation * torch.arange(window.kernel)
        place = (first * window.stride - window.before)[:, None] + steps
        beyond = (rest + behind)[:, None] + self.stride * steps.flip(0)
        inside = (place >= 0) & (beyond >= 0)
        taken = torch.where(inside, self._index(place, beyond), -1)
        counted = beyond >= -self.stride * window.after
        return (Axis.flat(size) if axis.is_flat else axis), taken, counted

    def seen_from(self, other: "Axis") -> Tensor:
        """For each class of `other`, a finer axis over the same base, the class of this one."""
        return self._index(*other._grid())

    def rebased(self) -> "tuple[Axis, Tensor]":
        """The same over the image that the base was made of; for each class the class of this one."""
        base = self.base
        assert base.of is not None
        axis = replace(
            self,
            base=base.of,
            stride=base.stride * self.stride,
            least=base.least + base.stride * (self.least - 1),
            right=base.stride * self.right,
        )
        first, rest = axis._grid()
        return axis, self._index(first, rest // base.stride)

    def _grid(self) -> tuple[Tensor, Tensor]:
        """The two capped distances of every class."""
        index = torch.arange(self.classes)
        return index // (self.right + 1), index % (self.right + 1)

    def _index(self, first: Tensor, rest: Tensor) -> Tensor:
        return first.clamp(max=self.left) * (self.right + 1) + rest.clamp(max=self.right)


def common(axes: list[Axis]) -> "tuple[Axis, list[Tensor]] | None":
    """The coarsest axis that is as fine as all of these, and for each of them its classes seen from there."""
    if any(axis.size is not axes[0].size for axis in axes):
        return None
    seen: list[tuple[Axis, Tensor]] = [(axis, torch.arange(axis.classes)) for axis in axes]
    varying = [i for i, axis in enumerate(axes) if not axis.is_flat]
    while len({seen[i][0].base for i in varying}) > 1:
        deepest = max(varying, key=lambda i: seen[i][0].base.depth)
        axis, classes = seen[deepest]
        if axis.base.of is None:
            return None
        axis, again = axis.rebased()
        seen[deepest] = axis, classes[again]
    if not varying:
        return axes[0], [classes for _, classes in seen]
    fine = [seen[i][0] for i in varying]
    if len({(axis.stride, axis.least) for axis in fine}) > 1:
        return None
    joint = replace(fine[0], left=max(a.left for a in fine), right=max(a.right for a in fine))
    flat = torch.zeros(joint.classes, dtype=torch.long)
    return joint, [flat if axis.is_flat else classes[axis.seen_from(joint)] for axis, classes in seen]
