"""The table of all architectures: as JSON, as text, and in the documentation."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tests.compaction.architectures import ARCHITECTURES
from tests.compaction.architectures.trial import Result, examine

ROOT = Path(__file__).parents[3]
RECORD = ROOT / "benchmarks" / "results" / "architectures.json"
PAGE = ROOT / "docs" / "compaction.md"
BEGIN, END = "<!-- table of architectures -->", "<!-- end of table -->"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One architecture: dead channels that are zero, and some that are constant."""

    zero: Result
    constant: Result

    @property
    def cells(self) -> list[str]:
        """What the table shows."""
        counts = [f"{self.zero.before / 1e6:.2f}", f"{self.zero.after / 1e6:.2f}"]
        ratios = [cell for result in (self.zero, self.constant) for cell in _shown(result)]
        return [self.zero.name, *counts, *ratios, f"{self.zero.seconds:.2f}"]


def line(name: str) -> Line:
    """Run one architecture, both ways."""
    torch.set_num_threads(1)
    architecture = ARCHITECTURES[name]
    return Line(zero=examine(architecture, shifts=False), constant=examine(architecture, shifts=True))


HEAD = ["architecture", "MACs (M)", "after", "x/live", "x/least", "x/live, constants", "x/least, constants", "seconds"]


def _shown(result: Result) -> list[str]:
    if result.problem:
        return [result.problem.partition(" ")[0].rstrip(":")] * 2
    return [f"{result.ratio:.3f}", f"{result.above_least:.3f}"]


def as_json(lines: list[Line]) -> str:
    """All figures, to be read by `read`."""
    return json.dumps([asdict(line) for line in lines], indent=1) + "\n"


def read(path: Path = RECORD) -> list[Line]:
    """The lines of a record."""

    def result(data: dict[str, Any]) -> Result:
        return Result(**{key: tuple(value) if isinstance(value, list) else value for key, value in data.items()})

    return [Line(**{key: result(value) for key, value in line.items()}) for line in json.loads(path.read_text())]


def as_markdown(lines: list[Line]) -> str:
    """The table for the documentation, networks written here first."""
    ordered = sorted(lines, key=lambda line: (line.zero.source != "written", line.zero.name.lower()))
    rows = [HEAD, ["---", *["---:"] * (len(HEAD) - 1)], *(line.cells for line in ordered)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def documented(page: str, lines: list[Line]) -> str:
    """The page with its table replaced."""
    ahead, _, rest = page.partition(BEGIN)
    _, _, behind = rest.partition(END)
    return f"{ahead}{BEGIN}\n{as_markdown(lines)}\n{END}{behind}"
