"""What finished runs have left in their folders: the result, and one record per epoch."""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffsparse.errors import SparsityError

_PARTS = {"config", "cost", "figures", "training_seconds", "zeros"}
"""What every result has."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A finished run, as plain data."""

    name: str
    """Name of its folder."""
    result: Mapping[str, Any]
    """What result.json says."""
    log: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """The records of all epochs, in order."""

    @property
    def method(self) -> str:
        return str(self.result["config"]["sparsifying"]["method"])

    @property
    def headline(self) -> tuple[str, float]:
        """Name and value of the figure that matters most, of the compact network."""
        figures = self.result["figures"]["compact"]
        name = self.result.get("headline") or next((name for name in figures if name != "loss"), "loss")
        return str(name), float(figures[name])

    def share(self, metric: str) -> float:
        """What is left of a cost (macs, params or bytes): that of the compact network divided by that of the whole."""
        cost = self.result["cost"]
        return float(cost["compact"][metric]) / max(float(cost["plain"][metric]), 1.0)


def read_run(folder: str | os.PathLike[str]) -> RunRecord:
    """The run in `folder`; raises if it is not finished, or no run."""
    path = Path(folder) / "result.json"
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        state = "is not finished" if path.with_name("config.toml").exists() else "is not the folder of a run"
        raise SparsityError(f"'{folder}' {state}: there is no {path.name} in it") from None
    except (OSError, ValueError) as error:
        raise SparsityError(f"cannot read '{path}': {error}") from error
    if not isinstance(result, dict) or not result.keys() >= _PARTS:
        raise SparsityError(f"'{path}' is not the result of a run")
    return RunRecord(name=Path(folder).resolve().name, result=result, log=tuple(read_log(path.with_name("log.jsonl"))))


def read_log(path: Path) -> list[dict[str, Any]]:
    """All records of a log, without a last line that a killed process left half-written; none if there is no file."""
    found = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found
