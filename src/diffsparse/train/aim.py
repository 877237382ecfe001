"""Lambda over a run: fixed, along the paper's ramp, or steered towards a share of zeros."""

from dataclasses import dataclass

from diffsparse.schedules import GradualStrength
from diffsparse.train.config import Sparsifying

LOOKS_AN_EPOCH = 5
"""How often a steered lambda is corrected."""
GAIN = 8.0
"""A gap of 1 / GAIN between wanted and actual share of zeros doubles or halves lambda."""


@dataclass
class Aim:
    """Chooses lambda from the position in the run and, when a target is set, from the share of zeros."""

    settings: Sparsifying
    epochs: int
    factor: float = 1.0
    """How much the steering has multiplied lambda by; the only state."""

    def strength(self, epoch: float) -> float:
        """Lambda at `epoch`, which may lie within one."""
        settings = self.settings
        if settings.ramp_epochs:
            ramp = GradualStrength(0.0, settings.strength, start_epoch=0, epochs=settings.ramp_epochs)
            return self.factor * ramp.at(epoch)
        return self.factor * settings.strength

    def look(self, epoch: float, zeros: float) -> None:
        """Correct lambda after seeing the share of zeros.

        The wanted share rises to the target along a cubic ramp over the first three quarters of the run, fast at first;
        lambda doubles or halves at most, however large the gap is.
        """
        if self.settings.target is None:
            return
        done = min(epoch / (0.75 * self.epochs), 1.0)
        wanted = self.settings.target * (1 - (1 - done) ** 3)
        self.factor *= 2 ** min(max(GAIN * (wanted - zeros), -1.0), 1.0)
