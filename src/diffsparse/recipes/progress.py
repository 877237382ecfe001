"""How much of the runs is done, and how long the rest takes."""

from collections.abc import Sequence
from dataclasses import dataclass

from diffsparse.recipes.book import Book
from diffsparse.recipes.jobs import Job
from diffsparse.training.folder import Log, RunFolder


class RunWatcher:
    """Told how the runs go; this one keeps silent, that of the command line prints."""

    def began(self, job: Job) -> None:
        """A run begins or goes on."""

    def went_on(self, running: Sequence[Job]) -> None:
        """Called now and then while these runs are at work."""

    def ended(self, job: Job) -> None:
        """A run is finished, and its results are kept."""

    def failed(self, job: Job, reason: str) -> None:
        """A run cannot be made."""

    def say(self, text: str) -> None:
        """Something to tell the user."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The state of all jobs, by what they have written so far."""

    book: Book
    jobs: tuple[Job, ...]
    processes: int
    kept: frozenset[Job] = frozenset()
    """Jobs whose results are there, though their folders may be gone."""

    def finished(self) -> int:
        """How many jobs are done."""
        return sum(job.done or job in self.kept for job in self.jobs)

    def share(self) -> float:
        """How much of the work is done, from 0 to 1."""
        total = sum(job.work for job in self.jobs)
        return sum(self._done(job)[0] for job in self.jobs) / total if total else 1.0

    def seconds_left(self) -> float | None:
        """Time until all jobs are done, if they run as fast as those before; None if nothing is known yet."""
        rates = {table: self._rate(table) for table in {job.table for job in self.jobs}}
        seconds = 0.0
        for job in self.jobs:
            left = job.work - self._done(job)[0]
            if left > 0:
                if (rate := rates[job.table]) is None:
                    return None
                seconds += left * rate
        return seconds / self.processes

    def _rate(self, table: str) -> float | None:
        """Seconds that one unit of work takes: measured, or by the estimate of the recipe."""
        jobs = [job for job in self.jobs if job.table == table]
        made = [self._done(job) for job in jobs if job not in self.kept]
        work, seconds = sum(own for own, _ in made), sum(own for _, own in made)
        if work and seconds:
            return seconds / work
        size = self.book.tables[table].sizes[jobs[0].size]
        return None if size.minutes is None else 60 * size.minutes * size.cores / sum(job.work for job in jobs)

    def _done(self, job: Job) -> tuple[float, float]:
        """Work done and seconds taken, by the log of the run; a finished run counts in full."""
        if job in self.kept:
            return job.work, 0.0
        records = Log(path=RunFolder(job.folder).log).records()
        seconds: dict[str, float] = {record["phase"]: record["seconds"] for record in records}
        work = job.work if job.done else min(len(records) * job.weight, job.work)
        return work, sum(seconds.values())


def in_words(seconds: float | None) -> str:
    """A time for people.

    Example:
        >>> in_words(40), in_words(3700), in_words(200_000)
        ('1 min left', '62 min left', '56 h left')
    """
    if seconds is None:
        return "time unknown"
    return f"{max(1, round(seconds / 60))} min left" if seconds < 2 * 3600 else f"{seconds / 3600:.0f} h left"
