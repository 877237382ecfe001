"""Lambda over a run: fixed, along the paper's ramp, steered towards a share of zeros, or any of these for a while."""

import copy
from abc import ABC, abstractmethod
from typing import Any

from diffsparse.errors import SparsityError, require_number


class StrengthController(ABC):
    """Decides on lambda while training goes on. `Penalty` and the training loop ask it for `strength`.

    Whoever trains calls `observe` with the position in the run and, from time to time, with the share of zeros. The
    state is everything that the instance holds, so that checkpoints need no list of fields.
    """

    epoch: float = 0.0
    """Where the run is; may lie within an epoch."""
    steers: bool = False
    """Whether it wants to be told the share of zeros."""

    @property
    @abstractmethod
    def strength(self) -> float:
        """Lambda now."""

    def observe(self, epoch: float, zeros: float | None = None, passed: float = 0.0) -> None:
        """Take note of the position and, if given, of the share of zeros, `passed` epochs after the last look at it."""
        self.epoch = require_number("epoch", epoch, low=0)

    def step(self, epochs: float = 1.0) -> None:
        """Move on by `epochs`."""
        self.observe(self.epoch + require_number("the number of epochs to step", epochs, low=0))

    def reached(self, zeros: float) -> bool:
        """Whether this share of zeros is what the controller aims at; always true without a target."""
        return True

    def check(self) -> None:  # noqa: B027
        """Raise if a value makes no sense."""

    def state_dict(self) -> dict[str, Any]:
        """All settings and where the controller is, as plain data."""
        return {
            key: value.state_dict() if isinstance(value, StrengthController) else value
            for key, value in vars(self).items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave; a bad state raises and changes nothing."""
        copy.deepcopy(self)._assign(state)
        self._assign(state)

    def _assign(self, state: dict[str, Any]) -> None:
        own = vars(self)
        if not isinstance(state, dict) or set(state) != set(own):
            raise SparsityError(f"the state of a {type(self).__name__} is a dictionary of {sorted(own)}, got {state!r}")
        for key, value in state.items():
            if isinstance(own[key], StrengthController):
                own[key]._assign(value)
            else:
                own[key] = value
        self.check()


class FixedStrength(StrengthController):
    """One lambda for the whole run; set `strength` to change it."""

    def __init__(self, strength: float) -> None:
        self.value, self.epoch = strength, 0.0
        self.check()

    def check(self) -> None:
        require_number("strength", self.value, low=0)

    @property
    def strength(self) -> float:
        return self.value

    @strength.setter
    def strength(self, value: float) -> None:
        self.value = require_number("strength", value, low=0)


class GradualStrength(StrengthController):
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
        self.initial, self.final, self.start_epoch, self.epochs, self.epoch = initial, final, start_epoch, epochs, 0.0
        self.check()

    def check(self) -> None:
        for name in ("initial", "final", "start_epoch", "epoch"):
            setattr(self, name, require_number(name, getattr(self, name), low=0))
        self.epochs = require_number("epochs", self.epochs, above=0)

    def at(self, epoch: float) -> float:
        """Lambda at the given epoch."""
        done = min(max((epoch - self.start_epoch) / self.epochs, 0.0), 1.0)
        return self.final + (self.initial - self.final) * (1 - done) ** 3

    @property
    def strength(self) -> float:
        return self.at(self.epoch)

    def __repr__(self) -> str:
        return (
            f"GradualStrength(initial={self.initial:g}, final={self.final:g}, "
            f"start_epoch={self.start_epoch:g}, epochs={self.epochs:g})"
        )


class SteeredStrength(StrengthController):
    """Multiplies the lambda of another controller so that a share of zeros is reached in time.

    The wanted share rises to the target along a cubic ramp, fast at first. Zeros of gates follow lambda late and rarely
    come back to life: lambda is raised slowly and taken away at once. Zeros of proximal steps come back without lambda:
    there it grows until they are enough, and the step itself then keeps them (`keeps_zeros`).

    Args:
        base: lambda without steering.
        target: the wanted share of zeros.
        begin: the epoch at which steering starts.
        epochs: the length of the run.
        keeps_zeros: whether what is steered stops by itself and keeps its zeros once there are enough.
        due: the target should be reached after this share of the run; the rest trains without losing more.
        narrow: if less than this share is missing, lambda acts in proportion to it.
        overdue: if steps that keep their zeros are late, lambda grows as if this share were missing.
        doublings: how often lambda doubles in a run in which all zeros are missing throughout.
        near: the target counts as reached if at most this share is missing.
        limit: the factor on lambda stays between 1 / limit and, unless `keeps_zeros`, limit.
    """

    steers = True

    def __init__(
        self,
        base: StrengthController,
        target: float,
        *,
        begin: float = 0.0,
        epochs: float,
        keeps_zeros: bool = False,
        due: float = 0.5,
        narrow: float = 1 / 8,
        overdue: float = 1 / 2,
        doublings: float = 48.0,
        near: float = 0.01,
        limit: float = 16.0,
    ) -> None:
        self.base, self.target, self.begin, self.epochs, self.keeps_zeros = base, target, begin, epochs, keeps_zeros
        self.due, self.narrow, self.overdue, self.doublings = due, narrow, overdue, doublings
        self.near, self.limit = near, limit
        self.factor, self.share, self.epoch = 1.0, 1.0, 0.0

    @property
    def strength(self) -> float:
        return self.factor * self.share * self.base.strength

    def reached(self, zeros: float) -> bool:
        return zeros >= self.target - self.near

    def observe(self, epoch: float, zeros: float | None = None, passed: float = 0.0) -> None:
        super().observe(epoch)
        self.base.observe(epoch)
        if zeros is None or epoch < self.begin:
            return
        length = self.epochs - self.begin
        done = min((epoch - self.begin) / (self.due * length), 1.0)
        missing = self.target * (1 - (1 - done) ** 3) - zeros
        if self.keeps_zeros:
            missing = max(missing, self.overdue) if done == 1 else missing
        else:
            self.share = min(max(missing / self.narrow, 0.0), 1.0)
        factor = max(self.factor * 2 ** (self.doublings * missing * passed / length), 1 / self.limit)
        self.factor = factor if self.keeps_zeros else min(factor, self.limit)


class WithinEpochs(StrengthController):
    """The lambda of another controller from epoch `begin` until epoch `end`, if there is one, and none outside."""

    def __init__(self, base: StrengthController, begin: float, end: float | None = None) -> None:
        self.base, self.begin, self.end, self.epoch = base, begin, end, 0.0
        self.steers = base.steers

    @property
    def strength(self) -> float:
        return 0.0 if self.epoch < self.begin or self.over else self.base.strength

    @property
    def over(self) -> bool:
        """Whether training goes on without lambda."""
        return self.end is not None and self.epoch >= self.end

    def observe(self, epoch: float, zeros: float | None = None, passed: float = 0.0) -> None:
        super().observe(epoch)
        self.base.observe(epoch, zeros, passed)

    def reached(self, zeros: float) -> bool:
        return self.base.reached(zeros)
