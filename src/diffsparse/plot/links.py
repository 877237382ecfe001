"""Which earlier layers each layer still reads, as in the paper's pictures of DenseNets."""

from math import gcd
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_whole
from diffsparse.module_tree import HoldsModel
from diffsparse.plot.channels import strengths
from diffsparse.plot.picture import blank_figure
from diffsparse.plot.theme import BLUE, dressed, theme
from diffsparse.selection import Selection

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

VIEWS = ("channels", "groups")
MOST_NAMES = 60


def connections(
    model: nn.Module | HoldsModel,
    *,
    view: Literal["both", "channels", "groups"] = "both",
    group: int | None = None,
    only: Selection | None = None,
    dark: bool = False,
) -> "Figure":
    """Which of its inputs each layer still reads: one row per layer, from top to bottom, one column per input.

    The view of channels shows \\|a\\| of each channel. The view of groups shows a block for each earlier layer of a
    DenseNet, the stronger the more of its channels are read; what is dead has the colour of frames, and where a row has
    no inputs there is nothing.

    Args:
        model: a gated DenseNet, or any model with gates on channels or zeros among the scales of batch norms; or what
            `compact` returned, or a budget that was reached.
        view: what to draw; of both, blocks are left out where there is only one.
        group: channels per block; by default the largest number that divides the widths of all rows, which is what a
            layer of a DenseNet adds.
        only: the gates to draw, chosen as for a `Penalty`; by default all.
        dark: whether the picture is for dark paper.

    Needs the `report` extra.

    Example:
        >>> import diffsparse as ds
        >>> rows = ([0.5, 0.0], [0.0, 0.0, 1.0, 1.0])
        >>> gates = nn.ModuleList([ds.SignedGate.from_values(row) for row in rows])
        >>> figure = connections(gates, view="groups")
        >>> figure.axes[0].images[0].get_array().tolist()
        [[0.5, None], [0.0, 1.0]]
    """
    if view not in ("both", *VIEWS):
        raise SparsityError(f"view must be both, channels or groups, got {view!r}")
    rows = strengths(model, only)
    if not rows:
        raise SparsityError("there are no gates of one dimension to draw")
    size = gcd(*map(len, rows.values())) if group is None else require_whole("group", group, low=1)
    if uneven := [name for name, row in rows.items() if len(row) % size]:
        raise SparsityError(f"the {len(rows[uneven[0]])} channels of '{uneven[0]}' are no whole blocks of {size}")
    # a single block would show nothing
    several = 1 < size < max(map(len, rows.values()))
    views = (VIEWS if several else VIEWS[:1]) if view == "both" else (view,)
    figure = blank_figure(7.5 * len(views), min(max(1.6 + 0.17 * len(rows), 3.0), 14.0))
    for axes, name in zip(figure.subplots(1, len(views), squeeze=False)[0], views, strict=True):
        block = 1 if name == "channels" else size
        _draw(figure, axes, rows, block, dark)
    return dressed(figure, dark)


def _draw(figure: Any, axes: Any, rows: dict[str, Tensor], block: int, dark: bool) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colours = theme(dark)
    scale = LinearSegmentedColormap.from_list("left", [colours.faint, BLUE, "#0b2c4a" if not dark else "#b9e0ff"])
    table = _table([*rows.values()], block)
    shown = np.ma.masked_invalid(table)
    highest = 1.0 if block > 1 else max(float(shown.max()), 1e-12)
    cells = axes.imshow(
        shown, cmap=scale.with_extremes(bad=colours.paper), vmin=0, vmax=highest, interpolation="nearest", aspect="auto"
    )
    words = "|a| of the channel" if block == 1 else f"share of the {block} channels that are read"
    bar = figure.colorbar(cells, ax=axes, shrink=0.6, label=words)
    bar.outline.set_visible(False)
    alive, whole = int((shown > 0).sum()), int(shown.count())
    what = "channels" if block == 1 else f"groups of {block}"
    axes.set_title(f"{alive:,} of {whole:,} {what} are read", fontsize=10)
    axes.set_xlabel("input channel" if block == 1 else f"input in groups of {block} channels")
    axes.locator_params(axis="x", integer=True)
    names = list(rows)
    step = -(-len(names) // MOST_NAMES)
    axes.set_yticks(range(0, len(names), step), names[::step], fontsize=7, parse_math=False)
    axes.spines[["top", "right", "bottom", "left"]].set_visible(False)
    if block > 1:
        # lines of the colour of the paper between blocks
        axes.set_xticks(np.arange(-0.5, table.shape[1]), minor=True)
        axes.set_yticks(np.arange(-0.5, len(names)), minor=True)
        axes.grid(which="minor", color=colours.paper, linewidth=1)
        axes.tick_params(which="minor", length=0)


def _table(rows: list[Tensor], block: int) -> Floats:
    """One row per layer; NaN behind its last input. Of blocks, the share of channels that are not zero."""
    table = np.full((len(rows), max(map(len, rows)) // block), np.nan)
    for place, row in enumerate(rows):
        values = row.double() if block == 1 else (row != 0).double().view(-1, block).mean(1)
        table[place, : len(values)] = values.numpy()
    return table
