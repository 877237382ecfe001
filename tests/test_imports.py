"""Every module is what its dotted name leads to, and features are imported only when asked for."""

import importlib
import os
import pkgutil
import subprocess
import sys
from functools import reduce
from types import ModuleType

import pytest

import diffsparse

MODULES = [module.name for module in pkgutil.walk_packages(diffsparse.__path__, "diffsparse.")]
LAZY = ("data", "graphs", "methods", "models", "plot", "text", "traffic", "training", "wiring")


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_a_dotted_name_leads_to_the_module(name: str) -> None:
    module = importlib.import_module(name)
    assert isinstance(module, ModuleType)
    # what `import a.b.c as m` binds; a function of the same name in a package would be found instead
    assert reduce(getattr, name.split(".")[1:], diffsparse) is module


def test_features_are_imported_when_first_used() -> None:
    code = f"""
import sys
import diffsparse as ds
for name in {LAZY}:
    assert name in dir(ds), name
    print(name, f"diffsparse.{{name}}" in sys.modules)
for name in {LAZY}:
    assert getattr(ds, name) is sys.modules[f"diffsparse.{{name}}"], name
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [f"{name} False" for name in LAZY]


def test_an_unknown_attribute_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'diffsparse' has no attribute 'nothing'"):
        diffsparse.nothing  # noqa: B018


def test_importing_takes_little_beyond_torch() -> None:
    code = "import time; a = time.process_time(); import torch, numpy, safetensors.torch; b = time.process_time()"
    code += "; import diffsparse; print(b - a, time.process_time() - b)"
    # compiled files are there after the first process, as in an installation
    there = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=there) for _ in range(3)]
    before, own = (min(column) for column in zip(*(map(float, run.stdout.split()) for run in runs), strict=True))
    # 0.2 s where torch takes 1.3 s; both are slower on a busy machine
    assert own < before * 0.2 / 1.3, (before, own)
