"""The command `diffsparse`."""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Union

import tyro
from rich.console import Console

import diffsparse
from diffsparse.cli.compact import Compact, run_compact
from diffsparse.cli.demo import Demo, run_demo
from diffsparse.cli.export import Export, run_export
from diffsparse.cli.measure import Measure, run_measure
from diffsparse.errors import SparsityError

COMMANDS: dict[str, tuple[type, Callable[[Any], None]]] = {
    "demo": (Demo, run_demo),
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
    chosen = tyro.cli(_configuration(), prog="diffsparse", description="Smaller networks while they train.", args=given)
    run = next(run for kind, run in COMMANDS.values() if type(chosen) is kind)
    errors = Console(stderr=True)
    try:
        run(chosen)
    except SparsityError as error:
        errors.print(f"diffsparse: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print("diffsparse: stopped")
        sys.exit(130)


def _configuration() -> Any:
    kinds = tuple(
        Annotated[kind, tyro.conf.subcommand(name=name, description=(kind.__doc__ or "").splitlines()[0])]
        for name, (kind, _) in COMMANDS.items()
    )
    return Union[kinds]  # noqa: UP007
