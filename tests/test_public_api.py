"""One list defines the public API; the docs name just that list."""

import inspect
import re
from pathlib import Path

import diffsparse as ds

ROOT = Path(__file__).parent.parent
API = (ROOT / "docs" / "api.md").read_text()


def test_every_public_name_exists_and_has_a_docstring() -> None:
    for module in (ds, ds.functional, ds.plot):
        for name in module.__all__:
            assert inspect.getdoc(getattr(module, name)), name


def test_docs_list_the_public_names() -> None:
    assert set(re.findall(r"^\| `ds\.(\w+)`", API, re.MULTILINE)) == set(ds.__all__)
    assert set(re.findall(r"^\| `(\w+)`", API, re.MULTILINE)) == set(ds.functional.__all__)
    pictures = {*ds.plot.__all__, *ds.plot.PICTURES.names()} - {"PICTURES"}
    assert set(re.findall(r"^\| `plot\.(\w+)`", API, re.MULTILINE)) == pictures


def test_fixed_names_of_the_functional_interface() -> None:
    parameters = inspect.signature(ds.functional.signed_threshold).parameters
    assert list(parameters) == ["alpha", "beta", "dim", "rgf"]
    assert list(inspect.signature(ds.GradualStrength).parameters) == ["initial", "final", "start_epoch", "epochs"]
    assert list(inspect.signature(ds.Penalty).parameters)[:4] == ["model", "norm", "strength", "schedule"]


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
