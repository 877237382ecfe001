"""Every script in examples/ runs, is short, adds at most three lines, and is in the docs word for word."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.test_processes import run_in_two_processes

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = {path.name: path for path in sorted((ROOT / "examples").glob("*.py"))}
DOCS = (ROOT / "docs" / "integrations.md").read_text()

# what each script prints in the end: what is left, and how good it is at least, in percent
ENDS = {
    "cnn.py": (r"accuracy ([\d.]+)%, channels \[\d+, \d+\]\nBudget\(macs 50.0%; reached", 90),
    "deploy_onnx.py": (r"accuracy with onnxruntime ([\d.]+)%, Conv2d\(1, \d,", 85),
    "pretrained.py": (r"accuracy [\d.]+%, 20346 parameters\naccuracy ([\d.]+)%, 1[0-4]\d\d\d parameters", 85),
    "with_accelerate.py": (r"accuracy ([\d.]+)%, Linear\(in_features=64, out_features=32", 85),
    "with_amp_ema.py": (r"average: accuracy ([\d.]+)%, Linear\(in_features=64, out_features=32", 85),
    "with_compile.py": (r"accuracy ([\d.]+)%, Linear\(in_features=64, out_features=32", 85),
    "with_ddp.py": (r"accuracy ([\d.]+)%, Linear\(in_features=64, out_features=32", 85),
    "with_lightning.py": (r"accuracy\s+│\s+0?\.?(\d\d).*Linear\(in_features=64, out_features=32", 80),
    "with_transformers.py": (r"accuracy ([\d.]+)%\nBudget\(macs 50.0%; reached", 65),
}


def run(path: Path, folder: Path) -> str:
    if path.name == "with_ddp.py":
        return run_in_two_processes(folder, str(path))
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_every_script_is_tested() -> None:
    assert SCRIPTS.keys() == ENDS.keys()


@pytest.mark.parametrize("name", ENDS)
def test_it_runs_and_learns(name: str, tmp_path: Path) -> None:
    words, least = ENDS[name]
    printed = run(SCRIPTS[name], tmp_path)
    found = re.search(words, printed, re.DOTALL)
    assert found, printed
    assert float(found[1]) >= least


@pytest.mark.parametrize("name", ENDS)
def test_it_is_short_and_adds_at_most_three_lines(name: str) -> None:
    lines = SCRIPTS[name].read_text().splitlines()
    assert len(lines) <= 40
    end = lines.index("# what you get") if "# what you get" in lines else len(lines)
    ours = [line for line in lines[:end] if re.search(r"\bds\.|[bB]udget", line.partition("  # ")[0])]
    ours = [line for line in ours if not re.match(r'import|from|"""|def ', line)]
    marked = [line for line in ours if line.endswith("# diffsparse")]
    # an average of weights has lines of its own in any loop
    assert [line for line in ours if not line.endswith(("# diffsparse", "# average"))] == []
    assert 1 <= len(marked) <= 3


@pytest.mark.parametrize("name", ENDS)
def test_the_docs_show_it_word_for_word(name: str) -> None:
    assert f"```python\n{SCRIPTS[name].read_text()}```" in DOCS
