import json
from pathlib import Path

import pytest

from diffsparse import SparsityError
from diffsparse.records import read_log, read_run
from tests.report.examples import log, result, write_run


def test_a_finished_run(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "mine"))
    assert (run.name, run.method, run.headline) == ("mine", "ds", ("accuracy", 0.9))
    assert run.share("macs") == 0.5
    assert list(run.log) == log()
    assert run.result == result()


def test_results_of_earlier_versions_have_no_headline(tmp_path: Path) -> None:
    old = result()
    del old["headline"]
    old["figures"]["compact"] = {"loss": 0.5, "mape": 7.0}
    assert read_run(write_run(tmp_path / "old", old)).headline == ("mape", 7.0)


def test_a_half_written_last_line_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert read_log(path) == []
    path.write_text(json.dumps({"epoch": 1}) + '\n{"epo')
    assert read_log(path) == [{"epoch": 1}]


def test_what_is_no_finished_run(tmp_path: Path) -> None:
    with pytest.raises(SparsityError, match=r"is not the folder of a run: there is no result.json"):
        read_run(tmp_path)
    (tmp_path / "config.toml").touch()
    with pytest.raises(SparsityError, match=r"is not finished: there is no result.json"):
        read_run(tmp_path)
    (tmp_path / "result.json").write_text("[]")
    with pytest.raises(SparsityError, match="is not the result of a run"):
        read_run(tmp_path)
