"""Imports point down only, and importing the package is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "diffsparse"

# From the bottom up; a unit may import its own line and the lines below.
LINES = [
    {
        "errors",
        "example",
        "files",
        "functional",
        "module_tree",
        "plain",
        "records",
        "references",
        "registry",
        "selection",
        "undisturbed",
        "version",
    },
    {"gates", "penalties"},
    {"gating", "nn"},
    {"averaging", "budget", "checkpoint", "compaction", "export", "measuring", "plot", "sharding"},
    {"data", "models", "testing"},
    {"methods", "training"},
    {"report"},
    {"graphs", "text", "traffic", "wiring"},
    {"recipes"},
    {"cli", "integrations"},
]
LEVEL = {unit: level for level, line in enumerate(LINES) for unit in line}
FILES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem not in {"__init__", "__main__"}
)


def unit_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_units(path: Path) -> set[str]:
    units = set()
    for node in ast.walk(ast.parse(path.read_text())):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        units |= {parts[1] for name in modules if (parts := name.split("."))[0] == "diffsparse" and len(parts) > 1}
    return units


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    own = LEVEL[unit_of(path)]
    for unit in imported_units(path) & set(LEVEL):
        assert LEVEL[unit] <= own, f"{unit_of(path)} imports {unit}, which lies above it"


def test_units_do_not_import_each_other_in_circles() -> None:
    edges = {unit: set() for unit in LEVEL}
    for path in FILES:
        edges[unit_of(path)] |= (imported_units(path) & set(LEVEL)) - {unit_of(path)}
    done: set[str] = set()
    while ready := [unit for unit in edges if unit not in done and edges[unit] <= done]:
        done.update(ready)
    assert done == set(edges)


FEATURES = {"graphs", "text", "traffic", "wiring"}
GENERIC = [path for path in FILES if unit_of(path) not in FEATURES | {"cli"}]


@pytest.mark.parametrize("path", GENERIC, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_generic_code_imports_no_feature(path: Path) -> None:
    assert not imported_units(path) & FEATURES


@pytest.mark.parametrize("name", ["loop", "run", "evaluate", "config", "build"])
def test_training_has_no_word_of_features(name: str) -> None:
    text = (PACKAGE / "training" / f"{name}.py").read_text().lower()
    assert [word for word in ("wiring", "wired", "road", "traffic", "graph") if word in text] == []


def test_every_unit_has_its_place() -> None:
    assert {unit_of(path) for path in FILES} == set(LEVEL)


def test_import_is_light() -> None:
    heavy = "{'sklearn', 'matplotlib', 'transformers', 'lightning', 'onnx', 'tyro', 'rich', 'torch.distributed.nn'}"
    code = f"import sys, diffsparse; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert found == "[]"
