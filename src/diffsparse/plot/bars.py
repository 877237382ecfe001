"""One row per layer: how wide layers are before and after, how much of them is zero, which heads died."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from diffsparse.errors import SparsityError
from diffsparse.gates import named_gates
from diffsparse.gating import sparsity
from diffsparse.module_tree import HoldsModel, layer_widths, modules_by_name
from diffsparse.plot.channels import norm_scales
from diffsparse.plot.given import compacted
from diffsparse.plot.picture import blank_figure
from diffsparse.plot.theme import BLUE, SERIES, dressed, plain_frame, theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROW, TALLEST = 0.2, 16.0
"""Inches per row, and of the tallest picture."""
MOST_NAMES = 75
"""Rows that get their names written; of more, some do."""
HEADS = ("num_heads", "num_attention_heads", "n_head", "n_heads")
"""What attention modules call the number of their heads."""


def widths(small: HoldsModel | Mapping[str, Mapping[str, int]], *, dark: bool = False) -> "Figure":
    """How many outputs each layer had and has: a pale bar for the whole network, a bar in front for the small one.

    Args:
        small: what `compact` returned, or a budget that was reached; or the widths of several networks, as
            `layer_widths` gives them, by name. The first has all layers; a layer that another does not have is gone.
        dark: whether the picture is for dark paper.

    Needs the `report` extra.

    Example:
        >>> figure = widths({"whole": {"conv": 8, "head": 2}, "small": {"head": 2}})
        >>> [int(bar.get_width()) for bar in figure.axes[0].patches]
        [8, 2, 0, 2]
    """
    nets = small if isinstance(small, Mapping) else _before_and_after(small)
    if not nets or not next(iter(nets.values())):
        raise SparsityError("there are no layers whose widths could be drawn")
    (first, whole), *others = nets.items()
    figure = _rows(list(whole), dark)
    (axes,) = figure.axes
    places = range(len(whole))
    axes.barh(places, [*whole.values()], 0.86, color=theme(dark).faint, label=first)
    thickness = 0.62 / max(len(others), 1)
    for number, (name, own) in enumerate(others):
        at = [place + (number + 0.5) * thickness - 0.31 for place in places]
        left = [own.get(layer, 0) for layer in whole]
        axes.barh(at, left, thickness, color=SERIES[number % len(SERIES)], label=name)
    if len(others) == 1:
        _name_losses(axes, whole, others[0][1], dark)
    axes.set_xlabel("outputs of the layer")
    return _with_legend(figure, len(nets), dark)


def _before_and_after(given: object) -> dict[str, dict[str, int]]:
    small = compacted(given)
    return {"before": layer_widths(small.original), "after": layer_widths(small.model)}


def zeros(model: nn.Module, *, dark: bool = False) -> "Figure":
    """How many entries of each layer are zero, and how many are left, with the share of zeros behind each bar.

    Entries are those of gates; without gates, scales of batch norms. `dark` is whether the picture is for dark paper.

    Needs the `report` extra.

    Example:
        >>> import diffsparse as ds
        >>> figure = zeros(ds.SignedGate.from_values([0.5, 0.0, 0.0, 0.0]))
        >>> [int(bar.get_width()) for bar in figure.axes[0].patches], figure.axes[0].texts[0].get_text()
        ([1, 3], '75%')
    """
    counts = _zeros_by_layer(model)
    figure, colours = _rows(list(counts), dark), theme(dark)
    (axes,) = figure.axes
    places, alive = range(len(counts)), [total - zero for zero, total in counts.values()]
    axes.barh(places, alive, 0.8, color=BLUE, label="left")
    axes.barh(places, [zero for zero, _ in counts.values()], 0.8, left=alive, color=colours.faint, label="zero")
    for place, (zero, total) in enumerate(counts.values()):
        words = f"{zero / total:.0%}" if zero else ""
        axes.text(total, place, words, va="center", ha="left", fontsize=7, color=colours.quiet)
    gone, whole = (sum(numbers) for numbers in zip(*counts.values(), strict=True))
    axes.set_xlabel(f"entries of the layer; {gone:,} of {whole:,} are zero ({gone / whole:.1%})")
    return _with_legend(figure, 2, dark)


def _zeros_by_layer(model: nn.Module) -> dict[str, tuple[int, int]]:
    if any(True for _ in named_gates(model)):
        return {row.name: (row.channels.zero, row.channels.total) for row in sparsity(model).gates}
    return {name: (int((scales == 0).sum()), scales.numel()) for name, scales in norm_scales(model).items()}


def heads(small: HoldsModel, *, dark: bool = False) -> "Figure":
    """Heads and neurons of each block of a transformer: what was there in pale, what is left in front of it.

    Args:
        small: what `compact` returned for a network with attention, or a budget that was reached.
        dark: whether the picture is for dark paper.

    Needs the `report` extra.
    """
    pair = compacted(small)
    before, after = _heads(pair.original), _heads(pair.model)
    if not before:
        names = ", ".join(HEADS)
        raise SparsityError(f"there is no attention in this network: no module has a number of heads ({names})")
    sides = {"heads": (before, after)}
    if neurons := _neurons(pair, before):
        sides["neurons"] = neurons
    figure = blank_figure(4.2 * len(sides), min(max(1.6 + ROW * len(before), 2.4), TALLEST))
    for axes, (kind, (had, left)) in zip(figure.subplots(1, len(sides), squeeze=False)[0], sides.items(), strict=True):
        places = range(len(had))
        axes.barh(places, [*had.values()], 0.8, color=theme(dark).faint, label="before")
        axes.barh(places, [left.get(name, 0) for name in had], 0.8, color=BLUE, label="left")
        _name_rows(axes, list(had))
        _name_losses(axes, had, left, dark)
        axes.set_xlabel(f"{kind} of the block")
        axes.locator_params(axis="x", integer=True)
        plain_frame(axes)
    return _with_legend(figure, 2, dark)


def _heads(model: nn.Module) -> dict[str, int]:
    modules = modules_by_name(model)
    # not those of configurations, nor of modules around the one that attends
    numbers = {name: [vars(module).get(key) for key in HEADS] for name, module in modules.items()}
    return {
        name: next(number for number in found if isinstance(number, int))
        for name, found in numbers.items()
        if any(isinstance(number, int) for number in found)
    }


def _neurons(small: Any, attention: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]] | None:
    """Widths before and after of hidden layers of blocks: layers outside attention, some of which became narrower."""
    had, left = layer_widths(small.original), layer_widths(small.model)
    own = {name: width for name, width in had.items() if not any(name.startswith(f"{a}.") for a in attention)}
    outputs = {name: getattr(action, "outputs", None) for name, action in small.plan.layers.items()}
    shrunk = {
        _place(name)
        for name, width in own.items()
        if left.get(name, width) < width or (outputs.get(name) or (0, 0))[1] < (outputs.get(name) or (0, 0))[0]
    }
    chosen = {name: width for name, width in own.items() if _place(name) in shrunk}
    return (chosen, {name: left.get(name, 0) for name in chosen}) if chosen else None


def _place(name: str) -> str:
    """The name without the number of its block: layers at the same place of all blocks are alike."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _rows(names: list[str], dark: bool) -> "Figure":
    figure = blank_figure(7, min(max(1.2 + ROW * len(names), 2.0), TALLEST))
    axes = figure.add_subplot()
    axes.locator_params(axis="x", integer=True)
    _name_rows(axes, names)
    plain_frame(axes)
    return figure


def _name_rows(axes: Any, names: list[str]) -> None:
    step = -(-len(names) // MOST_NAMES)
    axes.set_yticks(range(0, len(names), step), names[::step], fontsize=7, parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)


def _name_losses(axes: Any, had: Mapping[str, int], left: Mapping[str, int], dark: bool) -> None:
    """Write what is left behind each bar that has become shorter, if there is room for the names of all rows."""
    if len(had) > MOST_NAMES:
        return
    for place, (name, before) in enumerate(had.items()):
        if left.get(name, 0) < before:
            axes.text(before, place, f" {left.get(name, 0)}", va="center", fontsize=7, color=theme(dark).quiet)


def _with_legend(figure: "Figure", entries: int, dark: bool) -> "Figure":
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(entries, 4), frameon=False, fontsize=9)
    return dressed(figure, dark)
