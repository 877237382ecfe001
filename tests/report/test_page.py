import json
import re
from pathlib import Path
from typing import Any

import pytest

from diffsparse import SparsityError
from diffsparse.cli.main import main
from diffsparse.records import RunRecord, read_run
from diffsparse.report import render_report
from tests.report.examples import log, result, write_run


def record(name: str = "run", content: dict[str, Any] | None = None, epochs: int = 8) -> RunRecord:
    return RunRecord(name=name, result=result() if content is None else content, log=tuple(log(epochs)))


def data_of(page: str) -> list[dict[str, Any]]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return list(json.loads(text))


def test_nothing_is_fetched_from_elsewhere() -> None:
    page = render_report([record()])
    addresses = set(re.findall(r"[a-z]+://[^\s\"')]+", page))
    # the names of the language of pictures, which nobody fetches
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(script|img|link)[^>]+(src|href)=\"(?!data:)", page)


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "</script><b>", '" onload="x', "&amp;", "<!--", "é ✓"])
def test_names_are_harmless_and_kept(name: str) -> None:
    content = result()
    content["config"]["model"] = name
    content["layers"][0]["name"] = name
    page = render_report([record(name, content)])
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    (run,) = data_of(page)
    assert (run["name"], run["model"], run["layers"][0][0]) == (name, name, name)
    title = re.findall(r"<title>(.*?)</title>", page)[0]
    assert "<" not in title
    assert '"' not in title


def test_what_the_page_is_told_of_a_run() -> None:
    (run,) = data_of(render_report([record()]))
    assert [(card["key"], card["before"], card["after"]) for card in run["cards"]] == [
        ("macs", 2_000_000, 1_000_000),
        ("params", 300_000, 200_000),
        ("seconds", 2e-3, 1e-3),
        ("bytes", 1_210_000, 810_000),
    ]
    assert run["headline"]["value"] == 0.9
    assert run["headline"]["before"] is None
    assert run["asked"] == {"macs": 0.5}
    assert run["curve"]["moments"] == [[4.0, "becomes small"]]
    assert run["curve"]["series"]["train_loss"][:2] == [2.0, 1.0]
    assert ["epochs", "8", True] in run["config"]
    assert ["batch_size", "64", False] in run["config"]
    assert ["torch", "2.13.0"] in run["versions"]
    assert run["commands"][0] == "diffsparse train --epochs 8 --macs 0.5"


def test_a_number_of_macs_is_drawn_as_a_share() -> None:
    (run,) = data_of(render_report([record(content=result() | {"asked": {"macs": 500_000}})]))
    assert run["asked"] == {"macs": 0.25}


def test_before_is_a_plain_run_of_the_same_network_and_data() -> None:
    other = result(7, "plain", 1.0)
    other["config"]["data"] = "cifar10"
    runs = [record("ours"), record("a", result(2, "plain", 1.0)), record("b", result(4, "plain", 1.0))]
    shown = data_of(render_report([*runs, record("other", other)]))
    assert shown[0]["headline"]["before"] == pytest.approx(0.903)
    assert shown[0]["headline"]["note"] == "mean of 2 plain runs"
    assert shown[1]["headline"]["before"] is None


def test_a_run_that_cuts_has_a_before_of_its_own() -> None:
    content = result(method="slimming")
    content["figures"]["trained"]["accuracy"] = 0.95
    again = [{**epoch, "phase": "retrain", "epoch": n} for n, epoch in enumerate(log(2), 1)]
    (run,) = data_of(render_report([RunRecord(name="cut", result=content, log=(*log(3), *again))]))
    assert run["headline"]["before"] == 0.95
    assert run["curve"]["epochs"] == [1, 2, 3, 4, 5]
    assert [3, "is cut"] in run["curve"]["moments"]


def test_long_curves_are_thinned_and_keep_both_ends() -> None:
    (run,) = data_of(render_report([record(epochs=1000)]))
    assert len(run["curve"]["epochs"]) <= 260
    assert (run["curve"]["epochs"][0], run["curve"]["epochs"][-1]) == (1, 1000)


def test_a_loss_that_is_not_a_number_is_left_out() -> None:
    records = log(3)
    records[1]["train_loss"] = float("nan")
    (run,) = data_of(render_report([RunRecord(name="nan", result=result(), log=tuple(records))]))
    assert run["curve"]["series"]["train_loss"][1] is None


def test_times_of_a_busy_machine_are_marked() -> None:
    content = result()
    content["latency"]["compact"]["upper_quartile"] = 1.0
    quiet, busy = (data_of(render_report([record(content=each)]))[0]["remark"] for each in (result(), content))
    assert "busy" not in quiet
    assert "The machine was busy" in busy


def test_no_runs() -> None:
    with pytest.raises(SparsityError, match="one or more finished runs"):
        render_report([])


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [write_run(tmp_path / name) for name in ("a", "b")]
    main(["report", *map(str, folders), "--html", str(tmp_path / "report.html")])
    assert f"page in {tmp_path / 'report.html'}" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert [run["name"] for run in data_of(page)] == ["a", "b"]
    assert page == render_report([read_run(folder) for folder in folders])


def test_a_page_that_cannot_be_written_is_said_before_reading(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["report", "nowhere", "--html", str(tmp_path / "no" / "report.html")])
    assert stopped.value.code == 2
    assert "the folder of --html does not exist" in capsys.readouterr().err


def test_a_hundred_long_runs_stay_under_five_megabytes() -> None:
    runs = [record(f"run{i}", result(i, layers=164), epochs=160) for i in range(100)]
    assert len(render_report(runs).encode()) < 5e6
