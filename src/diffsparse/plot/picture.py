"""Pictures as files; the state of matplotlib stays untouched: no backend is chosen, no window opens."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from diffsparse.errors import SparsityError, import_extra
from diffsparse.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
"""Of `save_formats`."""
ENDINGS = (*FORMATS, ".pdf")
DOTS_PER_INCH = 150


def blank_figure(width: float, height: float) -> "Figure":
    """An empty figure, sizes in inches, that pyplot does not know about. Needs the `report` extra."""
    module = import_extra("matplotlib.figure", "pictures need matplotlib", "matplotlib")
    figure: Figure = module.Figure(figsize=(width, height), layout="constrained", facecolor="white")
    return figure


def save_picture(path: str | os.PathLike[str], figure: "Figure") -> None:
    """Write the figure as PNG, SVG or PDF, depending on the ending of `path`; the file appears when it is complete.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "empty.png")
        >>> save_picture(path, blank_figure(2, 1))
        >>> path.read_bytes()[1:4]
        b'PNG'
    """
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise SparsityError(f"a picture is written as {', '.join(FORMATS)} or .pdf, got '{os.fspath(path)}'")
    from matplotlib import rc_context

    # without date and random ids, the same figure gives the same file
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(ending)
    with replacing(path) as file, rc_context({"svg.hashsalt": "diffsparse"}):
        figure.savefig(file, format=ending.removeprefix("."), dpi=DOTS_PER_INCH, metadata=metadata)


def save_formats(figure: "Figure", folder: Path, name: str) -> None:
    """Write one picture to `folder` in every format."""
    for ending in FORMATS:
        save_picture(folder / f"{name}{ending}", figure)
