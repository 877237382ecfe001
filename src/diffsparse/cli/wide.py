"""Where tables go."""

from rich.console import Console

WIDE = 150
"""Characters of a line in a file or a pipe, which has no width of its own: tables keep their words whole."""


def wide_console() -> Console:
    """A console as wide as the terminal, or wide enough for a table of runs where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=max(WIDE, console.width))
