"""Pictures; each function returns a matplotlib figure and opens no window."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from diffsparse.plot.bars import heads, widths, zeros
from diffsparse.plot.curves import history, trade_off
from diffsparse.plot.links import connections
from diffsparse.plot.picture import blank_figure, save_picture
from diffsparse.registry import Registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "blank_figure", "connections", "heads", "history", "register_picture", "save_picture"]
__all__ += ["trade_off", "widths", "zeros"]

PICTURES = Registry["Callable[..., Figure]"]("picture")
register_picture = PICTURES.add
"""Make a picture of a feature known as `ds.plot.NAME`."""


def __getattr__(name: str) -> "Callable[..., Figure]":
    if not name.startswith("_") and name in PICTURES.names():
        return PICTURES.find(name)
    raise AttributeError(f"module 'diffsparse.plot' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *PICTURES.names()})
