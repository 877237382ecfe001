"""`diffsparse paper` on made-up results: nothing is trained here."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import diffsparse as ds
from diffsparse.cli.main import main
from diffsparse.cli.paper import RunsBar
from diffsparse.recipes import read_book
from diffsparse.recipes.jobs import jobs_of, row_jobs
from diffsparse.recipes.networks import whole_network
from diffsparse.recipes.pictures import darkened, draw_pictures, picture_files
from tests.recipes.example import FIRST, write_book
from tests.recipes.test_paper_recipes import RECIPES

COST = {"plain": {"macs": 1000, "params": 100}, "compact": {"macs": 500, "params": 40}}
UNITS = {"channels": {"gone": 1, "total": 4}, "norms": {"gone": 0, "total": 2}, "groups": None, "layers": None}


def made_up(folder: Path, errors: dict[str, list[float]], **changed: str) -> Path:
    """A book with results that have these errors."""
    book = read_book(write_book(folder, **changed))
    jobs = jobs_of(book, ["first"], "small", data_root=None, runs=folder)
    rows: dict[str, Any] = {}
    for job in jobs:
        if job.row in errors:
            facts = {"figures": {"accuracy": 1 - errors[job.row][job.seed] / 100}, "cost": COST}
            entry = rows.setdefault(job.row, {"key": job.key, "runs": {}})
            entry["runs"][str(job.seed)] = facts | {"zero": UNITS, "removed": UNITS}
    book.results.mkdir()
    (book.results / "first-small.json").write_text(json.dumps({"format": 1, "rows": rows}))
    return folder


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(["paper", *words])
    return capsys.readouterr().out


def test_show_marks_what_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    errors = {"Base": [20.0, 21.0], "DS": [30.0, 31.0], "cut, at once": [26.0, 27.0]}
    out = shown(capsys, "--show", "--recipes", str(made_up(tmp_path, errors)))
    lines = {line.split("│")[1].strip(): line for line in out.splitlines() if line.startswith("│")}
    assert "5.00 ± 0.10 | 20.50 ± 0.71" in lines["Base"]
    assert "50.0 ± 1.0 | 50.0 ± 0.0" in lines["DS"]
    # both lie above the base, as reported
    assert "✓" in lines["DS"]
    assert "✓" in lines["cut, at once"]
    assert "2 of 2" in lines["DS"]
    assert "5.50 | -" in lines["quoted"]
    # but their own order is the other way round
    assert "✗ DS is better than a cut: reported: agrees; ours does not agree (30.5 against 26.5)." in out
    order = (
        "2 of 3 pairs of rows are in the reported order of top-1 error %; the other way round: DS above cut, at once"
    )
    assert order in out


def test_show_marks_what_differs_and_what_is_too_close(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    errors = {"Base": [20.0, 21.0], "DS": [10.0, 11.0], "cut, at once": [19.0, 23.0]}
    out = shown(capsys, "first", "--show", "--recipes", str(made_up(tmp_path, errors)))
    lines = {line.split("│")[1].strip(): line for line in out.splitlines() if line.startswith("│")}
    assert "✗" in lines["DS"]
    assert "~" in lines["cut, at once"]
    assert "The second table" not in out


def test_show_without_results_and_by_our_convention(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "tab:first", "--show", "--convention", "own", "--recipes", str(write_book(tmp_path)))
    assert "MACs %" in out
    assert "ours not run yet" in out
    assert "0 of 2" in out


def test_a_row_shows_its_median_run_if_the_table_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made_up(tmp_path, {"DS": [12.0, 10.0]})
    (folder / "first.toml").write_text('statistic = "median"\n' + (folder / "first.toml").read_text())
    assert "| 10.00 ± 1.41" in shown(capsys, "first", "--show", "--recipes", str(folder))


def test_write_makes_the_page_from_results_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made_up(tmp_path, {"Base": [20.0, 21.0], "DS": [10.0, 11.0]})
    assert "page in" in shown(capsys, "--write", "--recipes", str(folder))
    text = (folder / "page.md").read_text()
    assert "| DS | - \\| 25.0 ± 0.0 |" in text
    assert "*Not complete: 4 of 6 runs.*" in text
    assert "- `second`: 4 of 6 runs." in text
    assert "*DS: not drawn yet.*" in text
    assert "They differ." in text


def test_what_is_known_needs_no_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIFFSPARSE_DATA", raising=False)
    text = FIRST.replace('data = "digits"', 'data = "cifar100"')
    errors = {"Base": [20.0, 21.0], "DS": [10.0, 11.0], "cut, at once": [19.0, 23.0]}
    folder = made_up(tmp_path, errors, first=text)
    assert "page in" in shown(capsys, "first", "--recipes", str(folder), "--runs", str(tmp_path / "runs"))


def test_runs_that_are_left_out_do_not_count(tmp_path: Path) -> None:
    book = read_book(write_book(tmp_path))
    jobs = jobs_of(book, ["first", "second"], "small", data_root=None, runs=tmp_path)
    words = io.StringIO()
    with RunsBar(Console(file=words), book, jobs, processes=1) as bar:
        bar.began(jobs[0])
        bar.expect(jobs[:2])
        bar.began(jobs[0])
    before, after = words.getvalue().splitlines()
    assert f"0 of {len(jobs)} runs" in before
    assert "0 of 2 runs" in after


def test_pictures_are_light_and_dark(tmp_path: Path) -> None:
    book = read_book(write_book(tmp_path))
    job = next(job for job in jobs_of(book, ["first"], "small", data_root=None, runs=tmp_path) if job.row == "DS")
    assert draw_pictures(book, ["pictures"], "small", tmp_path, None) == []
    job.folder.mkdir(parents=True)
    (job.folder / "result.json").write_text("{}")
    (job.folder / "picture.svg").write_text('<?xml version="1.0"?>\n<svg width="1">\n<path/></svg>\n')
    light, dark = draw_pictures(book, ["pictures"], "small", tmp_path, None)
    assert {"light": light, "dark": dark} == picture_files(book, "pictures", "small")["DS"]
    assert light.read_text() == (job.folder / "picture.svg").read_text()
    assert dark.read_text() == darkened(light.read_text()) != light.read_text()


def test_pictures_of_connections(tmp_path: Path) -> None:
    book = read_book(RECIPES)
    book = replace(book, cover=replace(book.cover, figures=tmp_path / "figures"))
    for row in ("DS-l1", "DS-l2,1"):
        job = row_jobs(book, "tab-densenet40", book.tables["tab-densenet40"].row(row), "small", runs=tmp_path)[0]
        whole, _ = whole_network(job.recipe, book.cover.data["cifar10"])
        job.folder.mkdir(parents=True)
        ds.save(ds.sparsify(whole), job.folder / "trained.safetensors")
        (job.folder / "result.json").write_text("{}")
    written = draw_pictures(book, ["fig-channel", "fig-group"], "small", tmp_path, None)
    assert len(written) == 8
    assert all("<svg" in path.read_text() for path in written)
    assert len({path.read_bytes() for path in written if "dark" in path.name and "group" in path.name}) == 1


@pytest.mark.parametrize("text", ["", "[]", '{"rows": {}}', '{"format": 0, "rows": {}}'])
def test_results_that_cannot_be_read(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made_up(tmp_path, {})
    (folder / "results" / "first-small.json").write_text(text)
    with pytest.raises(SystemExit) as stopped:
        main(["paper", "--show", "--recipes", str(folder)])
    assert stopped.value.code == 2
    assert "remove it, and run the table again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--recipes", "nowhere"], "there is no folder of recipes at 'nowhere'"),
        (["third", "--recipes", "BOOK"], "there is no table 'third'"),
        (["--jobs", "0", "--recipes", "BOOK"], "--jobs must be a whole number of at least 1"),
    ],
)
def test_mistakes(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_book(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["paper", *(word.replace("BOOK", str(tmp_path)) for word in words)])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
