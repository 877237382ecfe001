"""CIFAR-100 and ImageNet recipes, end to end, on tiny files in the official layout."""

from dataclasses import replace
from pathlib import Path

import pytest

from diffsparse.data import factory
from diffsparse.recipes.book import Book, read_book
from diffsparse.recipes.jobs import jobs_of
from diffsparse.recipes.progress import RunWatcher
from diffsparse.recipes.results import read_results
from diffsparse.recipes.runner import Runner, with_data
from diffsparse.recipes.table import Size, merged
from diffsparse.wiring import feature
from tests.data.fakes import SMALL100, write_cifar, write_images
from tests.recipes.test_paper_recipes import RECIPES

TINY100 = replace(SMALL100, train_records=100, test_records=20)


def some_of(name: str, folder: Path, *rows: str, **settings: object) -> Book:
    """The book of the paper with results elsewhere and, of one table, some rows of one seed."""
    book = read_book(RECIPES)
    table = book.tables[name]
    small = table.sizes["small"]
    size = Size(seeds=1, settings=merged(small.settings, settings))
    kept = [row if row.name in rows else replace(row, sizes={}, of=None) for row in table.rows]
    changed = replace(table, sizes=table.sizes | {"small": size}, rows=tuple(kept))
    return replace(book, folder=folder, tables=book.tables | {name: changed})


def run(book: Book, name: str, root: Path) -> dict[str, dict[str, object]]:
    """The facts of all runs of a table, by row."""
    jobs = with_data(book, jobs_of(book, [name], "small", data_root=root, runs=book.folder / "runs"), RunWatcher())
    runner = Runner(book, RunWatcher())
    runner.run(jobs, book.folder / "runs")
    assert runner.failures == {}
    return {row: entry["runs"]["0"] for row, entry in read_results(book, name, "small").items()}


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    # they take longer than the runs, and have tests of their own
    monkeypatch.setattr(feature, "save_formats", lambda *_: None)


@pytest.fixture
def cifar100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(factory._CIFAR, "cifar100", TINY100)
    write_cifar(TINY100, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    for part, count in (("train", 6), ("val", 2)):
        classes = {f"n0000000{number}": count for number in range(3)}
        write_images(tmp_path / "data" / part, classes, size=(80, 72), ending="JPEG")
    return tmp_path / "data"


# the small sizes with batches that fit the tiny files; everything else is as in the recipe
@pytest.mark.parametrize(
    ("table", "rows"),
    [
        ("tab-resnet_cifar100", ("DS 5", "budget 38 %")),
        ("tab-densenet40_cifar100", ("DS-l2,1",)),
        ("tab-dnw_cifar100", ("DS, RGF 11.25e-5",)),
    ],
)
def test_cifar100(cifar100: Path, tmp_path: Path, table: str, rows: tuple[str, ...]) -> None:
    found = run(some_of(table, tmp_path, *rows, batch_size=50), table, cifar100)
    assert found.keys() == {*rows}
    for facts in found.values():
        assert facts["figures"].keys() >= {"accuracy"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("table", "rows"),
    [("tab-resnet50_kd_imagenet", ("Base", "DS 4")), ("tab-dnw_imagenet", ("Ours 1",))],
)
def test_imagenet(imagenet: Path, tmp_path: Path, table: str, rows: tuple[str, ...]) -> None:
    found = run(some_of(table, tmp_path, *rows, batch_size=9), table, imagenet)
    assert found.keys() == {*rows}
