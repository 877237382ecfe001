"""Colours of pictures, on light paper and on dark; those of data suit colour-blind readers."""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, GOLD = SERIES = ("#2f7ebc", "#d9691e", "#2a9d78", "#a565b5", "#c79a14")
"""Readable on both papers; the first is for what is left."""


class Theme(NamedTuple):
    """Colours that depend on the paper."""

    ink: str
    paper: str
    faint: str
    """What is gone, grids and frames."""
    quiet: str
    """Words beside the point."""


LIGHT = Theme(ink="#1f2328", paper="#ffffff", faint="#d5d9de", quiet="#636b74")
DARK = Theme(ink="#e6e9ec", paper="#15191e", faint="#3d444c", quiet="#9aa3ad")


def theme(dark: bool) -> Theme:
    """The colours for dark or light paper."""
    return DARK if dark else LIGHT


def dressed(figure: "Figure", dark: bool) -> "Figure":
    """`figure` with paper, frames and words in the colours of the theme; colours of data stay as they are."""
    colours = theme(dark)
    figure.set_facecolor(colours.paper)
    for axes in figure.axes:
        axes.set_facecolor(colours.paper)
        axes.tick_params(colors=colours.quiet, which="both")
        for spine in axes.spines.values():
            spine.set_color(colours.faint)
        for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
            text.set_color(colours.ink)
    legends: list[Any] = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    for legend in filter(None, legends):
        for text in legend.get_texts():
            text.set_color(colours.ink)
        legend.get_frame().set(facecolor=colours.paper, edgecolor=colours.faint)
    if figure.get_suptitle():
        figure.suptitle(figure.get_suptitle(), color=colours.ink)
    return figure


def plain_frame(axes: Any, grid: str = "x") -> None:
    """Frame only where the numbers are, and a grid behind the data along one axis."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis=grid, color=LIGHT.quiet, alpha=0.2, linewidth=0.7)
