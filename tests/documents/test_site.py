"""Tables and pictures are those of the result files, and the site builds without a warning."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import diffsparse as ds
from tests.documents.blocks import PAGES, ROOT

SITE = ROOT / "docs" / "site"


@pytest.fixture(autouse=True)
def site_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SITE))


def test_tables_are_up_to_date() -> None:
    import tables

    for page, content in tables.pages().items():
        assert page.read_text() == content, f"{page.name} is out of date: run make tables"


def test_the_picture_of_the_first_page_is_up_to_date(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import figures

    from diffsparse.plot import save_picture

    save_picture(tmp_path / "tradeoff.svg", figures.tradeoff())
    committed = (ROOT / "docs/figures/tradeoff.svg").read_text()
    assert _shape(committed) == _shape((tmp_path / "tradeoff.svg").read_text()), "run make tables"


def _shape(picture: str) -> list[str]:
    """The lines of a picture that show numbers, whatever the version of matplotlib."""
    return re.findall(r'<path d="(M [\d. \nLM]+)"', picture)


def test_the_reference_has_every_public_name_once() -> None:
    import reference

    grouped = [name for names in reference.GROUPS.values() for name in names]
    assert len(grouped) == len(set(grouped))
    text = "\n".join(reference.pages().values())
    for name in ds.__all__:
        assert name == "functional" or f"diffsparse.{name}\n" in text, name
    for name in ds.functional.__all__:
        assert f"diffsparse.functional.{name}\n" in text


def test_the_first_page_is_short_before_its_details() -> None:
    ahead = PAGES["README.md"].read_text().partition("## What is supported")[0]
    # two screens of about 45 lines
    assert len(ahead.splitlines()) <= 80


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("furo")
    build = [sys.executable, str(SITE / "build.py"), "--output", str(tmp_path)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    for page in ("index.html", "budget.html", "reference-budgets.html", "CONTRIBUTING.html", "paper.html"):
        text = (tmp_path / "html" / page).read_text()
        # nothing is fetched from elsewhere when a page is opened
        assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://', text)
    assert "_images/tradeoff.svg" in (tmp_path / "html" / "index.html").read_text()
    assert "signed_threshold" in (tmp_path / "html" / "reference-functional.html").read_text()
