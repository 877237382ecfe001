from pathlib import Path

import pytest

from diffsparse import SparsityError
from diffsparse.recipes import read_book
from diffsparse.recipes.jobs import jobs_of, row_jobs
from tests.recipes.example import COVER, FIRST, SECOND, write_book


def test_settings_of_a_row_come_from_size_row_and_both(tmp_path: Path) -> None:
    book = read_book(write_book(tmp_path))
    (first, second) = row_jobs(book, "first", book.tables["first"].row("cut, at once"), "small", runs=Path("here"))
    assert (first.seed, second.seed, first.key == second.key) == (0, 1, True)
    assert (first.recipe.epochs, first.recipe.model, first.recipe.batch_size) == (2, "preresnet8-0.25", 192)
    assert first.recipe.sparsifying.retrain_epochs == 1
    assert first.epochs == 3
    assert first.folder == Path("here", "small", "first", f"cut-at-once-0-{first.key}")


def test_jobs_come_once_and_teachers_first(tmp_path: Path) -> None:
    book = read_book(write_book(tmp_path))
    jobs = jobs_of(book, ["second"], "small", data_root=None, runs=tmp_path)
    assert [(job.table, job.row, job.seed) for job in jobs] == [
        ("second", "teacher", 0),
        ("second", "teacher", 1),
        ("second", "student", 0),
        ("second", "student", 1),
        ("first", "DS", 0),
        ("first", "DS", 1),
    ]
    student = jobs[3]
    assert student.teacher == jobs[1]
    assert student.recipe.distillation.teacher == str(jobs[1].folder / "trained.safetensors")
    assert student.recipe.distillation.teacher_model == "preresnet8-0.5"
    assert jobs_of(book, ["second"], "paper", data_root=None, runs=tmp_path) == []


def test_other_settings_make_another_key(tmp_path: Path) -> None:
    keys = []
    for number, teacher in enumerate(("preresnet8-0.5", "preresnet8-0.75")):
        book = read_book(write_book(tmp_path / str(number), second=SECOND.replace("preresnet8-0.5", teacher)))
        jobs = jobs_of(book, ["second"], "small", data_root=Path(str(number)), runs=tmp_path)
        keys.append({job.row: job.key for job in jobs})
    # a student is another one if its teacher is; the place of the data does not matter
    assert keys[0]["teacher"] != keys[1]["teacher"]
    assert keys[0]["student"] != keys[1]["student"]
    assert keys[0]["DS"] == keys[1]["DS"]


def test_tables_go_by_name_and_label(tmp_path: Path) -> None:
    book = read_book(write_book(tmp_path))
    assert book.chosen(()) == ("first", "second", "pictures")
    assert book.chosen(("tab:second", "first", "second")) == ("second", "first")
    with pytest.raises(SparsityError, match=r"there is no table 'third' in .*; there are first, second, pictures"):
        book.chosen(("third",))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"first": FIRST.replace('base = "Base"', 'base = "Bass"')}, "speaks of a row 'Bass', which it does not have"),
        (
            {"first": FIRST.replace('"channels",', '"chanels",')},
            "first.toml has a column 'chanels'; known are channels,",
        ),
        ({"first": FIRST.replace('name = "DS"', 'name = "Base"')}, "first.toml has two rows called 'Base'"),
        ({"first": FIRST.replace('larger = "cut, at once"', "")}, "needs either larger or limit"),
        ({"first": FIRST.replace("seeds = 2", "seed = 2")}, "unknown key 'seed'"),
        ({"first": FIRST.replace("sizes.paper = {}", "sizes.huge = {}")}, "has a size 'huge' that the table does not"),
        ({"second": SECOND.replace("first/DS", "first/DT")}, "second.toml refers to 'first/DT', and there is no such"),
        ({"book": COVER.replace('"pictures"', '"figures"')}, "must be both a file"),
        ({"first": "title ="}, "cannot read '.*first.toml'"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    with pytest.raises(SparsityError, match=message):
        read_book(write_book(tmp_path, **changed))


def test_unknown_data_is_named(tmp_path: Path) -> None:
    book = read_book(write_book(tmp_path, first=FIRST.replace('data = "digits"', 'data = "cifar10"')))
    with pytest.raises(SparsityError, match="row 'Base' of first has the data 'cifar10', of which"):
        jobs_of(book, ["first"], "small", data_root=None, runs=tmp_path)


def test_a_folder_without_recipes(tmp_path: Path) -> None:
    with pytest.raises(SparsityError, match=r"there is no folder of recipes at .*, or give --recipes DIR"):
        read_book(tmp_path)
