"""Runs the notebook in this process, cell by cell, and with --write stores what it prints in the file.

python -m tests.examples.notebook --write
"""

import argparse
import contextlib
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import nbformat

PATH = Path(__file__).parent.parent.parent / "examples" / "from_zero_to_onnx.ipynb"


def executed(path: Path = PATH) -> Any:
    """The notebook with what its cells print now; it runs in the current folder."""
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    scope: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    for number, cell in enumerate(cells, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(cell.source, f"<cell {number}>", "exec"), scope)
        text = printed.getvalue()
        cell.execution_count = number
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)] if text else []
    return book


def printed_by(book: Any) -> list[str]:
    """What each code cell has printed."""
    return ["".join(output.text for output in cell.outputs) for cell in book.cells if cell.cell_type == "code"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="store what the cells print")
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        book = executed()
    if write:
        nbformat.write(book, PATH)
    print("\n".join(printed_by(book)))


if __name__ == "__main__":
    main()
