"""The example of the page about pictures runs."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent.parent / "docs" / "report.md"


def test_the_example_writes_its_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    assert (tmp_path / "widths.svg").read_bytes().startswith(b"<?xml")
    assert (tmp_path / "zeros.png").read_bytes().startswith(b"\x89PNG")


def test_every_picture_is_described() -> None:
    import diffsparse as ds

    described = set(re.findall(r"`ds\.plot\.(\w+)\(", PAGE.read_text()))
    helpers = {"PICTURES", "blank_figure", "register_picture"}
    assert described == {*ds.plot.__all__, *ds.plot.PICTURES.names()} - helpers
