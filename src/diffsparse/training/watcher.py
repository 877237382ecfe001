"""Who is told how a run goes."""

from typing import Any


class Watcher:
    """Told of every step and epoch; this one keeps silent, the command line's draws a bar."""

    def phase_began(self, name: str, *, epochs: int, steps: int, done: int) -> None:
        """A phase of `epochs` epochs begins, or goes on after `done` steps."""

    def step_done(self) -> None:
        """A step is over."""

    def epoch_done(self, record: dict[str, Any]) -> None:
        """An epoch is over; `record` is its line of the log."""

    def phase_over(self) -> None:
        """A phase is over."""

    def say(self, text: str) -> None:
        """Something worth a line."""
