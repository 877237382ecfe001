"""The command `diffsparse`."""

import sys
from collections.abc import Sequence

import tyro
from rich.console import Console

from diffsparse.cli.demo import Demo, run_demo
from diffsparse.errors import SparsityError

COMMANDS = {"demo": (Demo, run_demo)}


def main(args: Sequence[str] | None = None) -> None:
    """Parse the command line and run; exit code 2 with one sentence on bad input, 130 on Ctrl-C."""
    configuration = tyro.extras.subcommand_type_from_defaults(
        {name: kind() for name, (kind, _) in COMMANDS.items()},
        descriptions={name: (kind.__doc__ or "").splitlines()[0] for name, (kind, _) in COMMANDS.items()},
    )
    chosen = tyro.cli(configuration, prog="diffsparse", description="Smaller networks while they train.", args=args)
    run = next(run for kind, run in COMMANDS.values() if isinstance(chosen, kind))
    errors = Console(stderr=True)
    try:
        run(chosen)
    except SparsityError as error:
        errors.print(f"diffsparse: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print("diffsparse: stopped")
        sys.exit(130)
