"""When a budget looks, when the network becomes small, and where the cost should be on the way."""

import warnings

from diffsparse.errors import SparsityWarning, require_number, require_whole

EVERY, LOOKS = 10, 20
"""Steps between looks, and the least number of looks where there are as many steps."""


class Schedule:
    """Of a run.

    Args:
        steps: of the whole run.
        due: share of the steps after which the cost is reached.
        shrinks: in how many steps the network becomes small, evenly until then.

    Example:
        >>> schedule = Schedule(100, due=0.5, shrinks=2)
        >>> schedule.due, sorted(schedule.shrinks_at), schedule.left(25)
        (50, [25, 50], 0.125)
        >>> schedule.left(25, begin=25)
        1.0
    """

    def __init__(self, steps: int, *, due: float, shrinks: int) -> None:
        self.steps = require_whole("steps", steps, low=1)
        parts = require_whole("shrinks", shrinks, low=1)
        self.due = max(1, round(require_number("due", due, above=0, high=1) * self.steps))
        self.shrinks_at = {max(1, round(self.due * part / parts)) for part in range(1, parts + 1)}
        self.every = max(1, min(EVERY, self.due // LOOKS))
        self._warned = False

    def looks_at(self, step: int) -> bool:
        """Whether there is a look after this step."""
        return step in self.shrinks_at or step % self.every == 0

    def left(self, step: int, begin: int = 0) -> float:
        """How much of the way to the cost is left: the paper's cubic ramp, turned round, from the step `begin` on."""
        return min(1 - (step - begin) / (self.due - begin), 1.0) ** 3

    def warn_beyond_the_end(self, step: int) -> None:
        """Warn, once, of a step beyond the end of the run."""
        if step > self.steps and not self._warned:
            self._warned = True
            words = f"this budget was made for {self.steps} steps, and the loop goes on"
            warnings.warn(f"{words}; the model stays as small as it is", SparsityWarning, stacklevel=3)
