"""The report in a real Chromium: it can be clicked, sorted and searched, and asks for nothing outside its file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from diffsparse.records import RunRecord
from diffsparse.report import write_report
from tests.report.browser import Browser, find_chromium
from tests.report.examples import log, result

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; Debian's package is called chromium")

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    contents = {
        "half": result(3),
        "quarter": result(1, share=0.25),
        "whole": result(5, "plain", 1.0),
        EVIL: result(2, "slimming"),
    }
    runs = [RunRecord(name=name, result=content, log=tuple(log())) for name, content in contents.items()]
    write_report(path, runs)
    return path


@pytest.fixture
def opened(browser: Browser, page: Path) -> Iterator[Browser]:
    """The report, fresh; nothing may be logged or requested until the test is over."""
    browser.problems.clear()
    browser.requests.clear()
    browser.open(page)
    yield browser
    browser.run("1")
    assert browser.problems == []
    assert {url for url in browser.requests if not url.startswith("data:")} == {page.resolve().as_uri()}


def texts(browser: Browser, selector: str) -> list[str]:
    return list(browser.run(f"[...document.querySelectorAll('{selector}')].map((e) => e.textContent)"))


def test_headline_cards(opened: Browser) -> None:
    assert texts(opened, "#cards .label") == ["accuracy", "MACs", "parameters", "time of one input", "file"]
    assert texts(opened, "#cards .now") == ["90.30%", "1M", "200k", "1 ms", "810 kB"]
    assert texts(opened, "#cards .was") == [
        "before 90.50%",
        "before 2M",
        "before 300k",
        "before 2 ms",
        "before 1.21 MB",
    ]
    assert texts(opened, "#cards .note") == ["as a plain run"]
    assert texts(opened, "#cards .left") == ["50.0% left", "66.7% left", "50.0% left", "66.9% left"]


def test_layers_can_be_sorted_and_searched(opened: Browser) -> None:
    first = "#layers tbody tr:first-child td:first-child"
    assert texts(opened, first) == ["stem"]
    opened.click("#layers th:nth-child(4) button")
    assert texts(opened, "#layers tbody td:nth-child(4)") == ["48", "40", "32", "16", "8", "0"]
    opened.click("#layers th:nth-child(4) button")
    assert texts(opened, first) == ["stages.0.0.conv2"]
    assert opened.run("document.querySelector('#layers th:nth-child(4)').getAttribute('aria-sort')") == "ascending"
    opened.type("#layers input", "STAGES conv1")
    assert texts(opened, "#layers tbody td:first-child") == ["stages.0.0.conv1", "stages.1.0.conv1"]
    opened.type("#layers input", "no such layer")
    assert texts(opened, "#layers tbody td") == ["nothing found"]


def test_a_click_on_a_block_finds_its_layer(opened: Browser) -> None:
    assert opened.run("document.querySelectorAll('#network .block').length") == 6
    opened.click("#network .block:nth-of-type(4)")
    assert texts(opened, "#layers tbody td:first-child") == ["stages.1.0.conv1"]
    heights = "[...document.querySelectorAll('#network .block:nth-of-type(6) rect')].map((r) => r.height.baseVal.value)"
    _, before, after = opened.run(heights)
    assert after == pytest.approx(before / 2)
    assert opened.run("document.querySelectorAll('#network .block:nth-of-type(3) .after').length") == 0


def test_hover_shows_numbers(opened: Browser) -> None:
    opened.move("#network .block:nth-of-type(2)")
    assert "outputs: 16 of 32 (50.0%)" in texts(opened, "#tip")[0]
    opened.move("#trade-off .point[aria-label^=quarter]")
    assert "quarter" in texts(opened, "#tip")[0]
    assert "accuracy: 90.10%" in texts(opened, "#tip")[0]
    opened.move("#cost-curve .catch")
    assert "MACs: " in texts(opened, "#tip")[0]
    assert opened.run("document.getElementById('tip').hidden") is False
    opened.move("h1")
    assert opened.run("document.getElementById('tip').hidden") is True


def test_curves_mark_the_budget_and_the_moment(opened: Browser) -> None:
    assert texts(opened, "#cost-curve .legend span") == ["MACs", "parameters", "budget 50.0% of MACs"]
    assert texts(opened, "#loss-curve .legend span") == ["train loss", "test loss"]
    at = "document.querySelector('#cost-curve .moment').x1.baseVal.value"
    ends = "(() => { const p = document.querySelector('#cost-curve polyline').points; return [p[0].x, p[7].x]; })()"
    left, right = opened.run(ends)
    # epoch 4 of those from 1 to 8
    assert opened.run(at) == pytest.approx(left + (right - left) * 3 / 7, abs=0.2)
    assert opened.run("document.querySelectorAll('#cost-curve .limit').length") == 1


def test_another_run_is_chosen_by_table_point_and_list(opened: Browser) -> None:
    opened.click("#runs tbody tr:nth-child(2)")
    assert texts(opened, "#cards .now")[0] == "90.10%"
    opened.click("#trade-off .point[aria-label^=whole]")
    assert texts(opened, "#cards .now")[0] == "90.50%"
    assert texts(opened, "#cards .was")[0] == "a plain run"
    opened.run("document.getElementById('run').value = 0")
    opened.run("document.getElementById('run').dispatchEvent(new Event('change'))")
    assert texts(opened, "#runs tr.chosen td:first-child") == ["half"]
    opened.click("#metrics button:nth-child(3)")
    assert "file size left" in texts(opened, "#trade-off")[0]


def test_what_is_sorted_stays_sorted_when_a_run_is_chosen(opened: Browser) -> None:
    opened.click("#runs th:nth-child(4) button")
    before = texts(opened, "#runs tbody td:first-child")
    assert before == ["whole", "half", EVIL, "quarter"]
    opened.click("#runs tbody tr:nth-child(4)")
    assert texts(opened, "#runs tbody td:first-child") == before


def test_a_hostile_name_is_only_text(opened: Browser) -> None:
    opened.click("#runs tbody tr:nth-child(4)")
    assert texts(opened, "#runs tr.chosen td:first-child") == [EVIL]
    assert opened.run("document.scripts.length") == 2
    (command,) = texts(opened, "#commands pre")
    assert command.startswith("diffsparse train ")


@pytest.mark.parametrize("dark", [False, True])
def test_the_theme_follows_the_system_and_the_switch(browser: Browser, page: Path, dark: bool) -> None:
    browser.open(page, dark=dark)
    browser.run("localStorage.clear()")
    browser.open(page, dark=dark)
    colour = "getComputedStyle(document.body).backgroundColor"
    light, night = "rgb(246, 247, 249)", "rgb(15, 18, 22)"
    assert browser.run(colour) == (night if dark else light)
    browser.click("#theme")
    assert browser.run(colour) == (light if dark else night)
    browser.click("#theme")
    assert browser.run(colour) == (night if dark else light)
    browser.run("localStorage.clear()")


@pytest.mark.parametrize(
    ("name", "width", "dark"), [("light", 1280, False), ("dark", 1280, True), ("phone", 390, False)]
)
def test_screenshots_and_no_sideways_scrolling(
    browser: Browser, page: Path, tmp_path: Path, name: str, width: int, dark: bool
) -> None:
    browser.open(page, width=width, dark=dark)
    assert browser.run("document.documentElement.scrollWidth") == width
    browser.screenshot(tmp_path / f"{name}.png")
    assert (tmp_path / f"{name}.png").stat().st_size > 20_000


def test_one_run_alone_has_no_overview(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "one.html"
    write_report(path, [RunRecord(name="only", result=result(), log=tuple(log()))])
    browser.problems.clear()
    browser.open(path)
    assert browser.run("document.getElementById('overview').hidden") is True
    assert texts(browser, "h1") == ["only"]
    assert browser.problems == []


def test_a_budget_of_latency_has_its_curve(browser: Browser, tmp_path: Path) -> None:
    path, records = tmp_path / "latency.html", tuple({**epoch, "latency_share": 0.6} for epoch in log())
    write_report(path, [RunRecord(name="fast", result=result() | {"asked": {"latency": 0.7}}, log=records)])
    browser.problems.clear()
    browser.open(path)
    assert texts(browser, "#cost-curve .legend span") == ["MACs", "parameters", "latency", "budget 70.0% of latency"]
    assert browser.problems == []


def test_results_of_earlier_versions_are_shown_as_far_as_they_go(browser: Browser, tmp_path: Path) -> None:
    path, old = tmp_path / "old.html", result()
    for key in ("layers", "latency", "headline", "environment"):
        del old[key]
    del old["cost"]["plain"]["file_bytes"]
    write_report(path, [RunRecord(name="old", result=old)])
    browser.problems.clear()
    browser.open(path)
    assert texts(browser, "#cards .now") == ["90.00%", "1M", "200k", "-", "810 kB"]
    assert texts(browser, "#loss-curve .quiet") == ["Not recorded by this run."]
    assert browser.problems == []
