"""What a long run of random networks has found so far, as a file, so that it can be done in pieces."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.compaction.check import Outcome

ROOT = Path(__file__).parents[2]
PACKAGES = ("compaction", "measuring", "gating", "nn", "gates", "penalties", "functional")
"""Of diffsparse: compaction and what it imports."""


def fingerprint() -> str:
    """A hash over everything that a run depends on: compaction, the random networks and the check."""
    files = [
        *ROOT.glob("src/diffsparse/*.py"),
        *(path for package in PACKAGES for path in ROOT.glob(f"src/diffsparse/{package}/**/*.py")),
        *ROOT.glob("tests/compaction/networks/*.py"),
        ROOT / "tests/compaction/check.py",
    ]
    whole = hashlib.sha256()
    for path in sorted(files):
        whole.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return whole.hexdigest()[:16]


@dataclass(kw_only=True)
class Record:
    """Counts over all seeds that were done with one state of the source."""

    source: str
    """Its `fingerprint`."""
    done: list[list[int]] = field(default_factory=list)
    """Ranges of seeds, each from and up to but not including."""
    networks: int = 0
    skipped: int = 0
    """Networks that do not run, or give numbers that are not finite."""
    wrong: int = 0
    refused: int = 0
    fallbacks: int = 0
    """Networks that needed more than one attempt; `unexplained`: those of them without sizes in their code."""
    unexplained: int = 0
    parameters: list[int] = field(default_factory=lambda: [0, 0])
    """Before and after, over all networks."""
    seconds: float = 0.0
    """Wall-clock time."""
    problems: dict[str, str] = field(default_factory=dict)
    """By seed."""

    @classmethod
    def read(cls, path: Path | None) -> "Record":
        """What the file says, if it is about this source; otherwise nothing was done."""
        fresh = cls(source=fingerprint())
        if path is None or not path.exists():
            return fresh
        found = cls(**json.loads(path.read_text()))
        return found if found.source == fresh.source else fresh

    def write(self, path: Path | None) -> None:
        """Replace the file."""
        if path is not None:
            temporary = path.with_suffix(".part")
            temporary.write_text(json.dumps(asdict(self), indent=1) + "\n")
            temporary.replace(path)

    def missing(self, first: int, count: int, size: int) -> Iterator[range]:
        """The seeds that are not done, in pieces of at most `size`."""
        start = first
        for begin, end in [*sorted(self.done), [first + count, first + count]]:
            stop = min(max(begin, start), first + count)
            for at in range(start, stop, size):
                yield range(at, min(at + size, stop))
            start = max(start, end)

    def add_range(self, seeds: range, seconds: float) -> None:
        """Note that all of these are done; ranges that touch become one."""
        merged: list[list[int]] = []
        for begin, end in sorted([*self.done, [seeds.start, seeds.stop]]):
            if merged and begin <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([begin, end])
        self.done = merged
        self.seconds = round(self.seconds + seconds, 1)

    def add(self, seed: int, outcome: Outcome) -> None:
        """Note what became of one network."""
        self.networks += 1
        self.skipped += outcome.skipped
        self.refused += outcome.refused
        self.wrong += bool(outcome.problem) and not outcome.refused
        self.fallbacks += outcome.attempts > 1
        self.unexplained += outcome.falls_back
        self.parameters = [self.parameters[0] + outcome.before, self.parameters[1] + outcome.after]
        if outcome.problem or outcome.falls_back:
            self.problems[str(seed)] = outcome.problem or "the first attempt failed without sizes in the code"

    def __str__(self) -> str:
        counts = f"{self.networks} networks, {self.skipped} skipped, {self.wrong} wrong, {self.refused} refused"
        fallbacks = f"{self.fallbacks} fallbacks, {self.unexplained} of them unexplained"
        return f"{counts}, {fallbacks}, {self.seconds:.0f} s, parameters {self.parameters[0]} -> {self.parameters[1]}"
