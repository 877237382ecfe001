"""The command `diffsparse`."""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Union

import tyro
from rich.console import Console

import diffsparse
from diffsparse.cli.compact import Compact, run_compact
from diffsparse.cli.data import Data, run_data
from diffsparse.cli.demo import Demo, run_demo
from diffsparse.cli.demo_traffic import TrafficDemo, run_traffic_demo
from diffsparse.cli.export import Export, run_export
from diffsparse.cli.measure import Measure, run_measure
from diffsparse.cli.report import Report, run_report
from diffsparse.cli.train import Train, run_train, train_defaults
from diffsparse.errors import SparsityError

COMMANDS: dict[str, tuple[type, Callable[[Any], None]]] = {
    "demo": (Demo, run_demo),
    "demo traffic": (TrafficDemo, run_traffic_demo),
    "train": (Train, run_train),
    "report": (Report, run_report),
    "data": (Data, run_data),
    "compact": (Compact, run_compact),
    "measure": (Measure, run_measure),
    "export": (Export, run_export),
}


def main(args: Sequence[str] | None = None) -> None:
    """Parse the command line and run; exit code 2 with one sentence on bad input, 130 on Ctrl-C."""
    given = sys.argv[1:] if args is None else list(args)
    if given == ["--version"]:
        print(f"diffsparse {diffsparse.__version__}")
        return
    if " ".join(given[:2]) in COMMANDS:
        given[:2] = [" ".join(given[:2])]
    errors = Console(stderr=True)
    try:
        kinds = _configuration(given)
        chosen = tyro.cli(kinds, prog="diffsparse", description="Smaller networks while they train.", args=given)
        run = next(run for kind, run in COMMANDS.values() if type(chosen) is kind)
        run(chosen)
    except SparsityError as error:
        errors.print(f"diffsparse: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print("diffsparse: stopped")
        sys.exit(130)


def _configuration(args: Sequence[str]) -> Any:
    defaults = {"train": train_defaults(args)} if args[:1] == ["train"] else {}
    kinds = tuple(
        Annotated[
            kind,
            tyro.conf.subcommand(
                name=name,
                description=(kind.__doc__ or "").splitlines()[0],
                default=defaults.get(name, tyro.MISSING_NONPROP),
            ),
        ]
        for name, (kind, _) in COMMANDS.items()
    )
    return Union[kinds]  # noqa: UP007
