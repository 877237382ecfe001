"""One list defines the public API; the docs name just that list."""

import inspect
import re
from pathlib import Path

import pytest
import torch

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


def test_readme_example_runs_and_becomes_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    scope: dict[str, object] = {}
    exec(example, scope)
    assert scope["budget"].cost["macs"] == 0.5
    assert scope["model"][0].out_features == 32
    right = scope["model"].eval()(scope["x"]).argmax(1) == scope["y"]
    assert right.float().mean() > 0.95
    assert (tmp_path / "net.safetensors").stat().st_size > 0


def test_the_example_of_the_budget_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "budget.md").read_text(), re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    scope: dict[str, object] = {}
    exec(example, scope)
    assert scope["budget"].cost["macs"] == 0.5
    assert (tmp_path / "net.safetensors").exists()


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
