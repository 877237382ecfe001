"""The notebook runs, and what is stored in it is what it prints."""

import re
from pathlib import Path

import nbformat
import pytest

from tests.examples.notebook import PATH, executed, printed_by


def test_the_notebook_prints_what_is_stored_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stored, now = printed_by(nbformat.read(PATH, as_version=4)), printed_by(executed())
    # kernels of another machine may round in another way, and then learn a little differently
    without_numbers = [[re.sub(r"\s*\d+(\.\d+)?", "#", text) for text in texts] for texts in (stored, now)]
    assert without_numbers[0] == without_numbers[1]
    accuracy = re.search(r"accuracy with onnxruntime ([\d.]+)%", now[-1])
    assert accuracy
    assert float(accuracy[1]) > 88
    assert "macs 30.0%; reached" in now[2]
    assert (tmp_path / "digits.onnx").stat().st_size > 0
