"""The examples of CONTRIBUTING.md run, and what they register works in a real run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()
EXAMPLES = dict(re.findall(r"^## (An? [\w ]+)\n.*?```python\n(.*?)```", TEXT, re.DOTALL | re.MULTILINE))

# each example, and what a user would do next
NEXT = {
    "An operator rule": "x = torch.randn(2, 3, 4, 4)",
    "A gated module": "assert ds.compact(model, torch.randn(2, 4)).model[0].out_features == 1",
    "A norm": "command = ['--norm', 'log', '--strength', '0.01']",
    "A method": "command = ['--method', 'ridge', '--strength', '0.01']",
    "A data set": "command = ['--data', 'stripes', '--method', 'plain']",
    "A task": """
import diffsparse.data as data
from dataclasses import replace
digits = data.open_data("digits")
def images(request):
    return replace(digits, name="amounts", task="regression", num_outputs=1)
data.register_data("amounts", images)
command = ["--data", "amounts", "--method", "plain"]
""",
}
RUN = """
import tempfile
from pathlib import Path
from diffsparse.cli.main import main
if "command" in globals():
    options = ["--model", "preresnet8-0.25", "--epochs", "1", "--threads", "1", "--learning-rate", "0.01"]
    with tempfile.TemporaryDirectory() as folder:
        main(["train", *options, *command, "--output", str(Path(folder) / "run")])
        assert (Path(folder) / "run" / "result.json").exists()
"""


def test_there_is_an_example_for_each_extension_point() -> None:
    assert EXAMPLES.keys() == NEXT.keys()


@pytest.mark.parametrize("name", NEXT)
def test_example_runs(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    assert len(example.splitlines()) <= 40, f"{name} has {len(example.splitlines())} lines"
    # a process of its own, because registering cannot be undone
    script = tmp_path / "example.py"
    script.write_text(f"{example}\n{NEXT[name]}\n{RUN}")
    done = subprocess.run([sys.executable, "-W", "error", str(script)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
