"""Lambda over a run: fixed, along the paper's ramp, or steered towards a share of zeros."""

from dataclasses import dataclass

from diffsparse.penalties.strength import GradualStrength
from diffsparse.training.config import Sparsifying

LOOKS_AN_EPOCH = 50
"""How often a steered lambda is corrected."""
DUE = 0.5
"""By this share of the run the target is to be reached; there is time left to train without more loss of channels."""
NARROW = 1 / 8
"""Where fewer zeros than this are missing, lambda acts in proportion to them; where there are too many, not at all."""
OVERDUE = 1 / 2
"""Where proximal steps are late, lambda grows as if so many zeros were missing: the learning rate soon ends them."""
DOUBLINGS = 48.0
"""How often lambda would double in a run in which all zeros are missing throughout."""
NEAR = 0.01
"""So many zeros may be missing when the target counts as reached."""
RANGE = 16.0
"""A steered lambda of gates stays within this factor of the strength given."""


@dataclass
class Aim:
    """Chooses lambda from the position in the run and, when a target is set, from the share of zeros.

    Zeros of gates follow lambda late and rarely come back to life: steering raises lambda slowly, and takes it away at
    once. Zeros of proximal steps come back without lambda: it is raised until they are enough, which then settles them.
    """

    settings: Sparsifying
    epochs: int
    settles: bool = False
    """Whether lambda goes for good as soon as there are enough zeros, which then stay."""
    factor: float = 1.0
    """How much the steering has multiplied lambda by."""
    share: float = 1.0
    """How much of that is in force."""

    @property
    def settled(self) -> bool:
        """Whether zeros are to stay as they are from now on."""
        return self.settles and self.share == 0

    def strength(self, epoch: float) -> float:
        """Lambda at `epoch`, which may lie within one."""
        settings = self.settings
        if epoch < settings.delay_epochs or self.over(epoch):
            return 0.0
        strength = self.factor * self.share * settings.strength
        if settings.ramp_epochs:
            ramp = GradualStrength(0.0, 1.0, start_epoch=settings.delay_epochs, epochs=settings.ramp_epochs)
            strength *= ramp.at(epoch)
        return strength

    def over(self, epoch: float) -> bool:
        """Whether what is left trains on without lambda."""
        return self.settings.settle_epochs > 0 and epoch >= self.epochs - self.settings.settle_epochs

    def settle(self) -> None:
        """Take lambda away for good."""
        self.share = 0.0

    def near(self, zeros: float) -> bool:
        """Whether there are about as many zeros as are aimed at."""
        return self.settings.target is None or zeros >= self.settings.target - NEAR

    def look(self, epoch: float, zeros: float, passed: float) -> None:
        """Correct lambda after seeing the share of zeros, `passed` epochs after the last look.

        The wanted share rises to the target along a cubic ramp, fast at first.
        """
        begin = self.settings.delay_epochs
        if self.settings.target is None or epoch < begin or self.settled:
            return
        done = min((epoch - begin) / (DUE * (self.epochs - begin)), 1.0)
        missing = self.settings.target * (1 - (1 - done) ** 3) - zeros
        if self.settles:
            missing = max(missing, OVERDUE) if done == 1 else missing
        else:
            self.share = min(max(missing / NARROW, 0.0), 1.0)
        factor = self.factor * 2 ** (DOUBLINGS * missing * passed / (self.epochs - begin))
        self.factor = max(factor, 1 / RANGE) if self.settles else min(max(factor, 1 / RANGE), RANGE)
