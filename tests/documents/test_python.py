"""Every Python and TOML block of README and the guides runs; what is shown as output is what is printed."""

import contextlib
import io
import tomllib
from pathlib import Path
from typing import Any

import pytest

from diffsparse.training import read_recipe
from tests.documents.blocks import BLOCKS, PAGES, ROOT, blocks_of
from tests.documents.setups import AFTER, BLOCK, COMMON, PAGE

# scripts that a page shows; tests of their own run them
EXAMPLES = {path.read_text() for path in (ROOT / "examples").rglob("*.py")}
KINDS = {"python", "", "text", "toml", "bibtex"}


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    assert {block.language for block in BLOCKS} <= KINDS
    assert {page for page, _ in BLOCK} | PAGE.keys() | AFTER.keys() <= PAGES.keys()
    shown = sum(block.language == "text" for block in BLOCKS)
    assert shown == sum(block.prints is not None for block in BLOCKS), "a text block is the output of the one above it"


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language == "python" for b in blocks_of(page))])
# torch's own warnings about one process that shards
@pytest.mark.filterwarnings("ignore::UserWarning:torch.*")
def test_the_python_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "page"}
    exec(COMMON + PAGE.get(page, ""), scope)
    for block in blocks_of(page):
        if block.language != "python" or block.text in EXAMPLES:
            continue
        exec(BLOCK.get((page, block.number), ""), scope)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block.text, f"{page}, block {block.number}", "exec"), scope)
        if block.prints is not None:
            assert out.getvalue() == block.prints
    exec(AFTER.get(page, ""), scope)


def test_configurations_can_be_read(tmp_path: Path) -> None:
    for block in BLOCKS:
        if block.language == "toml":
            (tmp_path / "some.toml").write_text(block.text)
            read_recipe(tmp_path / "some.toml").check()


def test_the_citation_is_the_same_everywhere() -> None:
    entries = {block.text for block in BLOCKS if block.language == "bibtex"}
    assert len(entries) == 1
    cited = (ROOT / "CITATION.cff").read_text()
    version = {}
    exec((ROOT / "src/diffsparse/version.py").read_text(), version)
    assert f"version: {version['__version__']}\n" in cited
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in ("1910.03201", "Differentiable Sparsification for Deep Neural Networks"):
        assert word in cited
        assert word in entries.copy().pop()
    assert project["urls"]["Paper"] in cited
