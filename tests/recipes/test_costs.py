from pathlib import Path

import pytest

from diffsparse.models import create
from diffsparse.recipes import read_book
from diffsparse.recipes.costs import all_costs, job_flops
from diffsparse.recipes.jobs import jobs_of
from tests.recipes.example import FIRST, write_book


def test_costs_follow_from_macs_epochs_and_throughput(tmp_path: Path) -> None:
    book = read_book(write_book(tmp_path))
    costs = all_costs(book, book.tables, "paper")
    assert costs.keys() == {"first"}
    found = costs["first"]
    # preresnet8 on images of 8 x 8: a stem, a block each with 16, 32 and 64 channels, two shortcuts, a classifier
    macs = 9 * 16 * 64 + 2 * 9 * 16 * 16 * 64 + (9 * 16 * 32 + 9 * 32 * 32 + 16 * 32) * 16
    macs += (9 * 32 * 64 + 9 * 64 * 64 + 32 * 64) * 4 + 64 * 10
    assert found.runs == 1
    assert found.flops == 2 * macs * 3 * 1348 * 10
    assert found.hours == pytest.approx(found.flops / 1e9 / 3600)
    assert found.hours_on_all == pytest.approx(found.hours / 4 / 0.5)
    params = sum(p.numel() for p in create("preresnet8", in_channels=1).parameters())
    assert found.disk == pytest.approx(6 * 4 * params / 1e9)
    assert found.memory > 3 * 4 * params / 1e9


def test_a_cut_counts_both_phases_and_a_teacher_one_pass(tmp_path: Path) -> None:
    book = read_book(write_book(tmp_path, first=FIRST))
    jobs = {job.row: job for job in jobs_of(book, ("first", "second"), "small", data_root=None, runs=tmp_path)}
    assert job_flops(book, jobs["cut, at once"]) == job_flops(book, jobs["Base"])
    alone = job_flops(book, jobs["DS"]) * 2 / 3
    assert job_flops(book, jobs["student"]) == pytest.approx(alone + job_flops(book, jobs["teacher"]) / 3)
