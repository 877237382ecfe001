"""Lambda over the epochs."""

import math
from typing import Any

from diffsparse.errors import SparsityError


class GradualStrength:
    r"""The cubic ramp of the appendix, clamped at both ends.

    .. math:: \lambda_t = \lambda_f + (\lambda_i - \lambda_f)\Bigl(1 - \frac{t - t_0}{n}\Bigr)^3
              \quad\text{for } t_0 \le t \le t_0 + n

    Args:
        initial: lambda_i, in force up to `start_epoch`.
        final: lambda_f, in force from `start_epoch + epochs` on.
        start_epoch: t_0.
        epochs: n, the length of the ramp.

    Starts at epoch 0; `step()` moves on by one epoch, or by a fraction of one for a ramp per iteration.

    Example:
        >>> ramp = GradualStrength(initial=0.0, final=1.0, start_epoch=0, epochs=2)
        >>> [ramp.at(epoch) for epoch in (0, 1, 2, 3)]
        [0.0, 0.875, 1.0, 1.0]
    """

    def __init__(self, initial: float, final: float, start_epoch: float, epochs: float) -> None:
        for name, value in {"initial": initial, "final": final, "start_epoch": start_epoch}.items():
            if not 0 <= value < math.inf:
                raise SparsityError(f"{name} must be a finite number of at least 0, got {value!r}")
        if not 0 < epochs < math.inf:
            raise SparsityError(f"epochs must be a positive number, got {epochs!r}")
        self.initial, self.final = float(initial), float(final)
        self.start_epoch, self.epochs = start_epoch, epochs
        self.epoch = 0.0

    def at(self, epoch: float) -> float:
        """Lambda at the given epoch."""
        done = min(max((epoch - self.start_epoch) / self.epochs, 0.0), 1.0)
        return self.final + (self.initial - self.final) * (1 - done) ** 3

    @property
    def strength(self) -> float:
        """Lambda now."""
        return self.at(self.epoch)

    def step(self, epochs: float = 1.0) -> None:
        """Move on by `epochs`."""
        self.epoch += epochs

    def state_dict(self) -> dict[str, Any]:
        """The whole ramp and where it is."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        if set(state) != set(vars(self)):
            raise SparsityError(f"a saved ramp holds {sorted(vars(self))}, got {sorted(state)}")
        vars(self).update(state)

    def __repr__(self) -> str:
        return (
            f"GradualStrength(initial={self.initial:g}, final={self.final:g}, "
            f"start_epoch={self.start_epoch:g}, epochs={self.epochs:g})"
        )
