"""Makes the runs that are missing: one after the other in this process, or several processes at once."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffsparse.data import open_data
from diffsparse.errors import SparsityError
from diffsparse.recipes.book import Book
from diffsparse.recipes.jobs import Job
from diffsparse.recipes.progress import RunWatcher
from diffsparse.recipes.results import collect, is_collected
from diffsparse.recipes.worker import words_for
from diffsparse.training import StoppedError, Watcher, train
from diffsparse.training.context import Interrupt
from diffsparse.training.processes import own_rank

PATIENCE = 60
"""Seconds to wait for runs of a command that was killed, which write their checkpoints."""
LOOK = 0.2
"""Seconds between two looks at the workers."""


@dataclass
class Runner:
    """Makes runs; those that cannot be made are in `failures`, with the reason."""

    book: Book
    watcher: RunWatcher
    failures: dict[str, str] = field(default_factory=dict)

    def run(self, jobs: Sequence[Job], runs: Path, processes: int = 1) -> None:
        """Make the runs that are missing and take the results of all into the files of their tables.

        Args:
            jobs: teachers before their students.
            runs: the folder of all runs; nobody else may work there at the same time.
            processes: how many at once. With one, runs are made in this process, which may be one of several that
                torchrun has started.

        Raises:
            StoppedError: a signal came; every run has written a checkpoint.
        """
        for job in jobs:
            if job.done and not is_collected(self.book, job):
                self._take(job)
        missing = [job for job in jobs if not job.done and not is_collected(self.book, job)]
        missing += self._teachers(missing)
        if not missing:
            return
        with _alone_in(runs) as lock:
            # a teacher whose run is only known by its results is made again
            ordered = sorted(set(missing), key=lambda job: (job.teacher is not None, missing.index(job)))
            if processes == 1:
                self._one_by_one(ordered)
            else:
                self._at_once(ordered, processes, lock)

    def _teachers(self, jobs: Sequence[Job]) -> list[Job]:
        """Teachers without a file, whatever the results say of them."""
        return [job.teacher for job in jobs if job.teacher is not None and not job.teacher.done]

    def _one_by_one(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if reason := self._lost_teacher(job):
                self._fail(job, reason)
                continue
            self.watcher.began(job)
            try:
                train(job.recipe, job.folder, resume=job.folder.exists(), watcher=_Steps(self.watcher, job))
            except StoppedError:
                raise
            except SparsityError as error:
                self._fail(job, str(error))
            else:
                self._take(job)

    def _at_once(self, jobs: Sequence[Job], processes: int, lock: int | None) -> None:
        waiting, running = list(jobs), dict[Job, subprocess.Popen[str]]()
        with Interrupt() as interrupt:
            try:
                while waiting or running:
                    busy = {*waiting, *running}
                    for job in [job for job in waiting if job.teacher not in busy]:
                        if len(running) < processes:
                            waiting.remove(job)
                            self._begin(job, running, lock)
                    time.sleep(LOOK)
                    self.watcher.went_on(list(running))
                    for job, worker in [(job, worker) for job, worker in running.items() if worker.poll() is not None]:
                        del running[job]
                        self._after(job, worker)
                    if interrupt.signal is not None:
                        raise StoppedError(interrupt.signal)
            finally:
                _stop(running.values())

    def _begin(self, job: Job, running: dict[Job, "subprocess.Popen[str]"], lock: int | None) -> None:
        if reason := self._lost_teacher(job):
            self._fail(job, reason)
            return
        self.watcher.began(job)
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "diffsparse.recipes.worker"]
        # a group of its own: Ctrl-C reaches this process, which stops the workers in order
        with open(_words_of(job), "w", encoding="utf-8") as words:
            worker = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=words,
                stderr=words,
                text=True,
                start_new_session=True,
                pass_fds=() if lock is None else (lock,),
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        assert worker.stdin is not None
        worker.stdin.write(words_for(job))
        worker.stdin.flush()
        running[job] = worker

    def _after(self, job: Job, worker: "subprocess.Popen[str]") -> None:
        assert worker.stdin is not None
        worker.stdin.close()
        if worker.returncode == 0:
            self._take(job)
            _words_of(job).unlink(missing_ok=True)
        else:
            last = _words_of(job).read_text(encoding="utf-8").strip().splitlines()[-1:]
            self._fail(job, last[0] if last else f"its process ended with code {worker.returncode}")

    def _lost_teacher(self, job: Job) -> str:
        return "" if job.teacher is None or job.teacher.done else f"its teacher, {job.teacher.name}, is missing"

    def _take(self, job: Job) -> None:
        if own_rank() == 0:
            collect(self.book, job)
        self.watcher.ended(job)

    def _fail(self, job: Job, reason: str) -> None:
        self.failures[job.name] = reason
        self.watcher.failed(job, reason)


def with_data(book: Book, jobs: Sequence[Job], watcher: RunWatcher) -> list[Job]:
    """The jobs that are done or whose data is there; tells what is missing, and raises if nothing is left."""
    problems: dict[str, SparsityError] = {}
    to_do = [job for job in jobs if not job.done and not is_collected(book, job)]
    for job in {job.recipe.data: job for job in to_do}.values():
        try:
            open_data(job.recipe.data, root=job.recipe.data_root, network=job.recipe.model)
        except SparsityError as error:
            problems[job.recipe.data] = error
    lost = [job for job in to_do if job.recipe.data in problems]
    left = [job for job in jobs if job not in lost]
    if not left and problems:
        raise next(iter(problems.values()))
    for name, problem in problems.items():
        tables = sorted({job.table for job in lost if job.recipe.data == name})
        watcher.say(f"left out {', '.join(tables)}: {problem}")
    return left


class _Steps(Watcher):
    """Passes on what happens in a run of this process."""

    def __init__(self, watcher: RunWatcher, job: Job) -> None:
        self.watcher, self.job = watcher, job

    def epoch_done(self, record: dict[str, Any]) -> None:
        self.watcher.went_on([self.job])


def _words_of(job: Job) -> Path:
    """What a worker prints."""
    return job.folder.with_name(f"{job.folder.name}.words")


def _stop(workers: Any) -> None:
    """Let each worker finish its step and write a checkpoint."""
    for worker in workers:
        worker.stdin.close()
    for worker in workers:
        worker.wait()


@contextlib.contextmanager
def _alone_in(runs: Path) -> Iterator[int | None]:
    """Hold the lock of the folder; workers inherit it, so that it lasts as long as they do."""
    try:
        import fcntl
    except ImportError:
        # no such locks on this system
        yield None
        return
    if own_rank() != 0:
        yield None
        return
    runs.mkdir(parents=True, exist_ok=True)
    with open(runs / ".lock", "w") as file:
        ends = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > ends:
                    busy = f"another command makes runs in '{runs}'"
                    raise SparsityError(f"{busy}: wait until it is over, or give another --runs") from None
                time.sleep(LOOK)
        yield file.fileno()
