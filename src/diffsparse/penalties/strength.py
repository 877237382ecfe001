"""Lambda over the epochs."""

from typing import Any

from diffsparse.errors import SparsityError, require_number


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
        self._set(initial, final, start_epoch, epochs, 0.0)

    def _set(self, initial: float, final: float, start_epoch: float, epochs: float, epoch: float) -> None:
        start = require_number("start_epoch", start_epoch, low=0)
        length, now = require_number("epochs", epochs, above=0), require_number("epoch", epoch, low=0)
        self.initial, self.final = require_number("initial", initial, low=0), require_number("final", final, low=0)
        self.start_epoch, self.epochs, self.epoch = start, length, now

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
        self.epoch += require_number("the number of epochs to step", epochs, low=0)

    def state_dict(self) -> dict[str, Any]:
        """The whole ramp and where it is."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        if not isinstance(state, dict) or set(state) != set(vars(self)):
            raise SparsityError(f"a saved ramp is a dictionary of {sorted(vars(self))}, got {state!r}")
        self._set(**state)

    def __repr__(self) -> str:
        return (
            f"GradualStrength(initial={self.initial:g}, final={self.final:g}, "
            f"start_epoch={self.start_epoch:g}, epochs={self.epochs:g})"
        )
