"""Lambda over a run: fixed, along the paper's ramp, steered towards a share of zeros, or any of these for a while."""

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from diffsparse.errors import SparsityError, require_number


class StrengthController(ABC):
    """Decides on lambda while training goes on. `Penalty` and the training loop ask it for `strength`.

    Whoever trains calls `observe` with the position in the run and, from time to time, with the share of zeros. The
    state is everything that the instance holds, so checkpoints need no list of fields.
    """

    epoch: float = 0.0
    """Where the run is; may lie within an epoch."""
    steers = False
    """Whether it wants to be told the share of zeros."""

    def __post_init__(self) -> None:
        self.check()

    @property
    @abstractmethod
    def strength(self) -> float:
        """Lambda now."""

    def observe(self, epoch: float, zeros: float | None = None, passed: float = 0.0) -> None:
        """Note the position and, if given, the share of zeros, `passed` epochs after it was last given."""
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
        own = {"epoch": self.epoch} | vars(self)
        return {
            key: value.state_dict() if isinstance(value, StrengthController) else value for key, value in own.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave; a bad state raises and changes nothing."""
        copy.deepcopy(self)._assign(state)
        self._assign(state)

    def _assign(self, state: dict[str, Any]) -> None:
        own = {"epoch": self.epoch} | vars(self)
        if not isinstance(state, dict) or set(state) != set(own):
            raise SparsityError(f"the state of a {type(self).__name__} is a dictionary of {sorted(own)}, got {state!r}")
        for key, value in state.items():
            if isinstance(own[key], StrengthController):
                own[key]._assign(value)
            else:
                setattr(self, key, value)
        self.check()


@dataclass(eq=False)
class FixedStrength(StrengthController):
    """One lambda for the whole run; set `strength` to change it."""

    value: float

    def check(self) -> None:
        require_number("strength", self.value, low=0)

    @property
    def strength(self) -> float:
        return self.value

    @strength.setter
    def strength(self, value: float) -> None:
        self.value = require_number("strength", value, low=0)


@dataclass(eq=False)
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

    initial: float
    final: float
    start_epoch: float
    epochs: float

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


@dataclass(eq=False)
class SteeredStrength(StrengthController):
    """Multiplies the lambda of another controller so that a share of zeros is reached in time.

    The wanted share rises to the target along a cubic ramp, fast at first. Zeros of gates react slowly to lambda and
    rarely come back to life: lambda is raised slowly and removed at once. Zeros of proximal steps come back without
    lambda: there it grows until they are enough, and the step itself then keeps them (`keeps_zeros`).
    """

    base: StrengthController
    """Lambda without steering."""
    target: float
    """The wanted share of zeros."""
    begin: float
    """The epoch at which steering starts."""
    epochs: float
    """The length of the run."""
    keeps_zeros: bool = False
    """Whether what is steered stops by itself and keeps its zeros once there are enough."""
    due: float = 0.5
    """The target should be reached after this share of the run; the rest trains without losing more."""
    narrow: float = 1 / 8
    """If less than this share is missing, lambda acts in proportion to it."""
    overdue: float = 1 / 2
    """If steps that keep their zeros are late, lambda grows as if this share were missing."""
    doublings: float = 48.0
    """How often lambda doubles in a run in which all zeros are missing throughout."""
    near: float = 0.01
    """The target counts as reached if at most this share is missing."""
    limit: float = 16.0
    """The factor on lambda stays between 1 / limit and, unless `keeps_zeros`, limit."""
    factor: float = 1.0
    """Lambda is multiplied by this factor, which changes slowly,"""
    share: float = 1.0
    """and by this share, which changes at once."""
    steers = True

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


@dataclass(eq=False)
class WithinEpochs(StrengthController):
    """The lambda of another controller from epoch `begin` until epoch `end`, if there is one, and none outside."""

    base: StrengthController
    begin: float
    end: float | None = None

    def __post_init__(self) -> None:
        self.steers = self.base.steers

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


TRAVEL = 5.0
"""How far the penalty alone should be able to move a gate in a whole run, on the scale of gates."""
LEAST_TRAVEL = 0.5
"""If it can move a gate less than this, next to nothing becomes zero."""
LARGEST = 0.03
"""A larger lambda keeps a network from learning."""
ADAPTIVE = 0.05
"""Lambda where the optimiser rescales gradients, so that lambda decides on directions, not on speed."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    r"""How far a run can move a gate: what lambda acts through.

    With SGD, a penalty of slope lambda moves a gate by :math:`\lambda \sum_t \eta_t / (1 - m)` in a whole run, with
    learning rates eta and momentum m. Adam moves it by up to :math:`\sum_t \eta_t`, whatever lambda is.
    """

    total_rate: float
    """Learning rates of gates, added up over all steps."""
    momentum: float = 0.0
    adaptive: bool = False
    """Whether the optimiser rescales gradients, as Adam does."""
    direct: bool = False
    """Whether lambda moves values in a step of its own, as proximal methods do, and not through gradients."""
    decays: bool = False
    """Whether weight decay acts on gates, which makes zeros without lambda."""

    def __post_init__(self) -> None:
        require_number("total_rate", self.total_rate, above=0)
        require_number("momentum", self.momentum, low=0, high=1)

    def travel(self, strength: float) -> float:
        """How far this lambda moves a gate on which nothing else acts."""
        if self.adaptive:
            return self.total_rate if strength > 0 else 0.0
        return strength * self.total_rate / max(1 - self.momentum, 1e-3)

    @property
    def too_short(self) -> bool:
        """Whether no lambda that lets a network learn moves gates far enough."""
        return not self.direct and self.travel(LARGEST) < LEAST_TRAVEL

    def auto_strength(self) -> float:
        """The lambda with which gates can travel far enough, as far as a network bears it."""
        if self.adaptive:
            return ADAPTIVE
        far_enough = TRAVEL / self.travel(1.0)
        return far_enough if self.direct else min(far_enough, LARGEST)


def auto_strength(total_rate: float, *, momentum: float = 0.0, adaptive: bool = False) -> float:
    r"""A lambda for `Penalty(model, L1(), strength=...)` that suits the length of a run.

    .. math:: \lambda = \min\Bigl(\frac{5\,(1 - m)}{\sum_t \eta_t},\; 0.03\Bigr)
              \quad\text{with SGD,}\qquad \lambda = 0.05 \quad\text{with Adam}

    Args:
        total_rate: the learning rates of gates, added up over all steps: with a constant one, steps times rate; along a
            cosine to zero, half of that.
        momentum: m, of SGD.
        adaptive: whether the optimiser rescales gradients, as Adam does.

    Example:
        >>> round(auto_strength(total_rate=630 * 0.1 / 2, momentum=0.9), 4)
        0.0159
    """
    return Pace(total_rate=total_rate, momentum=momentum, adaptive=adaptive).auto_strength()
