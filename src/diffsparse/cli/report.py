"""`diffsparse report`: finished runs in one table."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from diffsparse.cli.table import results_table, wide_console
from diffsparse.cli.target import check_writable
from diffsparse.errors import SparsityError
from diffsparse.files import write_json

_PARTS = {"config", "cost", "figures", "training_seconds", "zeros"}


@dataclass(frozen=True, kw_only=True)
class Report:
    """Put finished runs into one table."""

    runs: Positional[tuple[Path, ...]]
    """Folders of runs."""
    output: Path | None = None
    """Where to also write the results as JSON."""


def run_report(config: Report) -> None:
    """Read, print, write."""
    if not config.runs:
        raise SparsityError("give the folders of one or more finished runs")
    if config.output is not None:
        check_writable(config.output, "--output")
    if len({folder.name for folder in config.runs}) < len(config.runs):
        raise SparsityError("two of the runs have folders of the same name; rename one")
    console = wide_console()
    results: dict[str, Any] = {}
    for folder in config.runs:
        try:
            results[folder.name] = read_result(folder)
        except SparsityError as error:
            # one run that is still going must not hide the others
            if len(config.runs) == 1:
                raise
            console.print(f"left out: {error}", markup=False, soft_wrap=True)
    if not results:
        raise SparsityError("none of the runs is finished")
    console.print(results_table(results))
    if config.output is not None:
        write_json(config.output, results)
        console.print(f"results in {config.output}", markup=False, soft_wrap=True)


def read_result(folder: Path) -> dict[str, Any]:
    """The result of the run in `folder`; raises if it is not finished."""
    path = folder / "result.json"
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        state = "is not finished" if (folder / "config.toml").exists() else "is not the folder of a run"
        raise SparsityError(f"'{folder}' {state}: there is no {path.name} in it") from None
    except (OSError, ValueError) as error:
        raise SparsityError(f"cannot read '{path}': {error}") from error
    if not isinstance(result, dict) or not result.keys() >= _PARTS:
        raise SparsityError(f"'{path}' is not the result of a run")
    return result
