"""The command `diffsparse`."""

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Union

import tyro
from rich.console import Console

import diffsparse
from diffsparse.cli.demo import Demo, TrafficDemo
from diffsparse.cli.doctor import Doctor
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
    "doctor": Doctor,
}


def main(args: Sequence[str] | None = None) -> None:
    """Parse the command line and run; exit code 2 with one sentence on bad input, 130 on Ctrl-C."""
    given = sys.argv[1:] if args is None else list(args)
    errors = Console(stderr=True)
    try:
        try:
            _run(given)
        finally:
            # here, where a reader that is gone can be noticed, rather than at the end of the process
            sys.stdout.flush()
    except SparsityError as error:
        errors.print(f"diffsparse: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        # the terminal shows ^C where the cursor was
        lead = "\n" if errors.is_terminal else ""
        errors.print(f"{lead}diffsparse: stopped")
        sys.exit(130)
    except BrokenPipeError:
        # `diffsparse ... | head`: nobody reads on; what is left in the buffer goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _run(given: list[str]) -> None:
    if given == ["--version"]:
        print(f"diffsparse {diffsparse.__version__}")
        return
    if " ".join(given[:2]) in COMMANDS:
        given[:2] = [" ".join(given[:2])]
    _check_command(given)
    description = "Smaller networks while they train. `diffsparse --version` prints the version."
    try:
        command = tyro.cli(_configuration(given), prog="diffsparse", description=description, args=given)
    except FileNotFoundError as error:
        # of --tyro-write-completion
        raise SparsityError(f"cannot write '{error.filename}': make its folder first") from error
    command.run()


def _check_command(args: Sequence[str]) -> None:
    """Raise if the first word is no command, with the closest one."""
    if not args or args[0].startswith("-") or args[0] in COMMANDS:
        return
    close = get_close_matches(args[0], COMMANDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(COMMANDS)}"
    raise SparsityError(f"there is no command {args[0]!r}; {hint}")


def _configuration(args: Sequence[str]) -> Any:
    kinds = []
    for name, kind in COMMANDS.items():
        default = train_defaults(args) if [name] == args[:1] == ["train"] else tyro.MISSING_NONPROP
        summary = (kind.__doc__ or "").splitlines()[0]
        kinds.append(Annotated[kind, tyro.conf.subcommand(name=name, description=summary, default=default)])
    return Union[tuple(kinds)]  # noqa: UP007
