"""Runs of a small book: made, resumed, killed, collected."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from diffsparse.recipes import Book, read_book
from diffsparse.recipes.jobs import Job, jobs_of
from diffsparse.recipes.progress import Estimate, RunWatcher
from diffsparse.recipes.results import is_collected, read_results
from diffsparse.recipes.runner import Runner, with_data
from diffsparse.training import StoppedError
from diffsparse.training.folder import Log, RunFolder
from diffsparse.training.snapshot import Snapshot
from tests.recipes.example import FIRST, SECOND, write_book
from tests.training.children import together

ONE_SEED = {"first": FIRST.replace("seeds = 2", "seeds = 1"), "second": SECOND.replace("seeds = 2", "seeds = 1")}


class Words(RunWatcher):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def began(self, job: Job) -> None:
        self.lines.append(f"began {job.row} {job.seed}")

    def ended(self, job: Job) -> None:
        self.lines.append(f"ended {job.row} {job.seed}")

    def failed(self, job: Job, reason: str) -> None:
        self.lines.append(f"failed {job.row} {job.seed}: {reason}")

    def say(self, text: str) -> None:
        self.lines.append(text)


def all_jobs(book: Book, *names: str) -> list[Job]:
    return jobs_of(book, names or ("first", "second"), "small", data_root=None, runs=book.folder / "runs")


def untimed(book: Book) -> dict[str, Any]:
    """All results, without times."""
    found = {name: read_results(book, name, "small") for name in ("first", "second")}
    for rows in found.values():
        for row in rows.values():
            for facts in row["runs"].values():
                del facts["seconds"], facts["training_seconds"]
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Book, Words]:
    """A book whose runs were made one after the other."""
    book, words = read_book(write_book(tmp_path_factory.mktemp("made"), **ONE_SEED)), Words()
    Runner(book, words).run(all_jobs(book), book.folder / "runs")
    return book, words


def test_all_runs_are_made_and_collected(made: tuple[Book, Words]) -> None:
    book, words = made
    assert [line for line in words.lines if line.startswith("failed")] == []
    assert words.lines[-2:] == ["began student 0", "ended student 0"]
    assert {name: list(rows) for name, rows in untimed(book).items()} == {
        "first": ["Base", "DS", "cut, at once"],
        "second": ["teacher", "student"],
    }
    facts = untimed(book)["first"]["cut, at once"]["runs"]["0"]
    result = json.loads((all_jobs(book, "first")[2].folder / "result.json").read_text())
    assert facts["figures"] == result["figures"]["compact"]
    assert facts["removed"]["norms"]["total"] == 7


def test_nothing_is_made_twice_even_without_the_folders(made: tuple[Book, Words], tmp_path: Path) -> None:
    book, _ = made
    words = Words()
    Runner(book, words).run(all_jobs(book), book.folder / "runs")
    elsewhere = jobs_of(book, ("first",), "small", data_root=None, runs=tmp_path / "none")
    Runner(book, words).run(elsewhere, tmp_path / "none")
    assert words.lines == []
    estimate = Estimate(book=book, jobs=tuple(elsewhere), processes=2, kept=frozenset(elsewhere))
    assert (estimate.finished(), estimate.share(), estimate.seconds_left()) == (3, 1.0, 0.0)


def test_changed_settings_are_run_again(made: tuple[Book, Words], tmp_path: Path) -> None:
    book, _ = made
    changed = read_book(write_book(tmp_path, first=FIRST.replace("strength = 0.02", "strength = 0.03")))
    old, new = (next(job for job in all_jobs(each, "first") if job.row == "DS") for each in (book, changed))
    assert is_collected(book, old)
    assert old.folder.name != new.folder.name
    assert not is_collected(book, new)


def test_a_failure_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    text = SECOND.replace('model = "preresnet8-0.5"', 'model = "preresnet9-0.5"').replace("seeds = 2", "seeds = 1")
    book, words = read_book(write_book(tmp_path, second=text, first=ONE_SEED["first"])), Words()
    runner = Runner(book, words)
    runner.run(all_jobs(book, "second"), tmp_path / "runs")
    assert "failed student 0: its teacher, second / teacher, seed 0, is missing" in words.lines
    assert "ended DS 0" in words.lines
    assert set(runner.failures) == {"second / teacher, seed 0", "second / student, seed 0"}


def test_data_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    text = SECOND.replace('data = "digits"', 'data = "cifar100"')
    book, words = read_book(write_book(tmp_path, second=text)), Words()
    jobs = jobs_of(book, ("first", "second"), "small", data_root=tmp_path, runs=tmp_path / "runs")
    assert {job.table for job in with_data(book, jobs, words)} == {"first"}
    assert len(words.lines) == 1
    assert words.lines[0].startswith("left out second: ")


def logged(jobs: list[Job]) -> int:
    return sum(len(Log(path=RunFolder(job.folder).log).records()) for job in jobs)


class Stopper(Words):
    """Interrupts this process when the runs have logged so many epochs together."""

    def __init__(self, jobs: list[Job], number: int, epochs: int) -> None:
        super().__init__()
        self.jobs, self.number, self.epochs = jobs, number, epochs

    def went_on(self, running: Any) -> None:
        if logged(self.jobs) >= self.epochs:
            self.epochs = 10**9
            signal.raise_signal(self.number)


def check_nothing_is_lost(jobs: list[Job]) -> None:
    """Each run that is not finished has a checkpoint of the last epoch that it has logged, or of the one before."""
    for job in jobs:
        folder = RunFolder(job.folder)
        if not job.done and folder.config.exists():
            paths = folder.snapshots()
            kept = Snapshot.read(paths[0]).progress.epoch if paths else 0
            assert len(Log(path=folder.log).records()) - 1 <= kept


def test_killed_and_interrupted_runs_go_on_and_lose_at_most_one_epoch(made: tuple[Book, Words], tmp_path: Path) -> None:
    book = read_book(write_book(tmp_path, **ONE_SEED))
    jobs = all_jobs(book, "first")
    words = ["paper", "first", "--recipes", str(tmp_path), "--runs", str(tmp_path / "runs"), "--jobs", "2"]
    process = subprocess.Popen([sys.executable, "-m", "diffsparse", *words], stdout=subprocess.DEVNULL)
    ends = time.monotonic() + 200
    while not logged(jobs) and process.poll() is None:
        assert time.monotonic() < ends
        time.sleep(0.01)
    process.kill()
    process.wait()
    # workers of a killed command stop by themselves, and hold the lock until then
    stopper = Stopper(jobs, signal.SIGINT, epochs=4)
    with pytest.raises(StoppedError):
        Runner(book, stopper).run(jobs, tmp_path / "runs", processes=2)
    check_nothing_is_lost(jobs)
    before = logged(jobs)
    assert 4 <= before < 9
    runner = Runner(book, Words())
    runner.run(jobs, tmp_path / "runs")
    assert runner.failures == {}
    # going on is exact
    assert untimed(book)["first"] == untimed(made[0])["first"]


def rank(number: int, folder: str) -> None:
    book = read_book(Path(folder))
    runner = Runner(book, RunWatcher())
    jobs = [job for job in all_jobs(book, "first") if job.row == "DS"]
    runner.run(jobs, book.folder / "runs")
    assert runner.failures == {}


def test_processes_of_torchrun_share_each_run(tmp_path: Path) -> None:
    book = read_book(write_book(tmp_path, **ONE_SEED))
    assert together(rank, str(tmp_path)) == [0, 0]
    facts = read_results(book, "first", "small")["DS"]["runs"]["0"]
    assert facts["environment"]["processes"] == 2


def test_a_signal_ends_runs_of_this_process(tmp_path: Path) -> None:
    book = read_book(write_book(tmp_path, **ONE_SEED))

    jobs = all_jobs(book, "first")
    with pytest.raises(StoppedError):
        Runner(book, Stopper(jobs, signal.SIGTERM, epochs=1)).run(jobs, tmp_path / "runs")
    (job,) = [job for job in all_jobs(book, "first") if job.folder.exists()]
    assert len(Log(path=RunFolder(job.folder).log).records()) == 1
    assert RunFolder(job.folder).snapshots()
