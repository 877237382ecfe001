"""The command `diffsparse`."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Union

import tyro
from rich.console import Console

import diffsparse
from diffsparse.cli.demo import Demo, TrafficDemo
from diffsparse.cli.model_commands import Compact, Export, Measure
from diffsparse.cli.paper import Paper
from diffsparse.cli.tables import Data, Report
from diffsparse.cli.train import Train, train_defaults
from diffsparse.errors import SparsityError

COMMANDS: dict[str, type] = {
    "demo": Demo,
    "demo traffic": TrafficDemo,
    "train": Train,
    "report": Report,
    "data": Data,
    "compact": Compact,
    "measure": Measure,
    "export": Export,
    "paper": Paper,
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
        description = "Smaller networks while they train."
        tyro.cli(_configuration(given), prog="diffsparse", description=description, args=given).run()
    except SparsityError as error:
        errors.print(f"diffsparse: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print("diffsparse: stopped")
        sys.exit(130)


def _configuration(args: Sequence[str]) -> Any:
    kinds = []
    for name, kind in COMMANDS.items():
        default = train_defaults(args) if [name] == args[:1] == ["train"] else tyro.MISSING_NONPROP
        summary = (kind.__doc__ or "").splitlines()[0]
        kinds.append(Annotated[kind, tyro.conf.subcommand(name=name, description=summary, default=default)])
    return Union[tuple(kinds)]  # noqa: UP007
