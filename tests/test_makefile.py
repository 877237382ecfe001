"""`make` sets up its environment anew when it is half-made, and only then."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GOOD, BROKEN = "exit 0", "exit 1"


def script(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize("ready", [".venv/.ready", ".venv/.demo"])
@pytest.mark.parametrize(
    ("found", "calls"), [(GOOD, ""), (BROKEN, "-m venv --clear .venv"), (None, "-m venv --clear .venv")]
)
def test_a_half_made_environment_is_rebuilt(tmp_path: Path, found: str | None, calls: str, ready: str) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    inside = tmp_path / ".venv" / "bin" / "python"
    if found is not None:
        script(inside, found)
    script(tmp_path / "good", GOOD)
    # stands for Python: notes what it is asked to make, and makes an environment that works
    make_it = 'test "$1" = -m || exit 0; echo "$@" >> log; mkdir -p .venv/bin; cp good .venv/bin/python'
    script(tmp_path / "python", make_it)
    subprocess.run(["make", "PYTHON=./python", ready], cwd=tmp_path, check=True, capture_output=True)
    log = tmp_path / "log"
    assert (log.read_text().strip() if log.exists() else "") == calls
