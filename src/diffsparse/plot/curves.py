"""How runs went: cost and loss over time, and accuracy over cost."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from diffsparse.errors import SparsityError, require_one_of
from diffsparse.plot.picture import blank_figure
from diffsparse.plot.theme import BLUE, GREEN, ORANGE, PURPLE, SERIES, dressed, plain_frame, theme
from diffsparse.records import RunRecord, read_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Run: TypeAlias = str | os.PathLike[str] | RunRecord
NAMES = {"macs": "MACs", "params": "parameters", "bytes": "bytes", "latency": "latency"}
COLOURS = {"macs": BLUE, "params": GREEN, "bytes": ORANGE, "latency": PURPLE}
COUNTED = ("macs", "params", "bytes")
MARKERS = "osD^vP*X"
MOST_LABELS = 25


class HasHistory(Protocol):
    """What `history` needs of a `Budget`."""

    def state_dict(self) -> dict[str, Any]: ...


def history(run: Run | HasHistory, *, dark: bool = False) -> "Figure":
    """Cost over time, as shares of the whole network, with the budget's line and the moment at which it became small.

    Of a run, the losses are drawn below, and time is in epochs; of a `Budget`, time is in steps, and the ramp that the
    cost was steered along is drawn too.

    Args:
        run: the folder of a finished run, or a `Budget`.
        dark: whether the picture is for dark paper.

    Needs the `report` extra.
    """
    if hasattr(run, "state_dict"):
        return dressed(_of_budget(run.state_dict(), dark), dark)
    return dressed(_of_run(_read(run), dark), dark)


def _of_budget(state: Mapping[str, Any], dark: bool) -> "Figure":
    looks, made_for = state["history"], state["made_for"]
    limits, due = made_for["limits"], made_for["due"]
    if not looks:
        raise SparsityError("this budget has not looked at the gates yet; draw its history after some steps")
    figure = blank_figure(7.5, 3.8)
    axes = figure.add_subplot()
    steps = [look["step"] for look in looks]
    for name in _drawn(limits):
        asked = name in limits
        shown: dict[str, Any] = (
            {"linewidth": 2.0} if asked else {"linewidth": 1.2, "linestyle": (0, (6, 2)), "zorder": 3}
        )
        costs = [1.0, *(look[name] for look in looks)]
        # once it is small, it stays as it is
        more = ([made_for["steps"]], costs[-1:]) if steps[-1] >= due else ([], [])
        axes.plot([0, *steps, *more[0]], [*costs, *more[1]], color=COLOURS[name], label=NAMES[name], **shown)
    ramp = [look["wanted"] for look in looks]
    axes.plot(steps, ramp, color=theme(dark).quiet, linestyle=":", linewidth=1.2, label="allowed on the way")
    _mark_limits(axes, limits)
    _mark_moment(axes, due, "becomes small", dark)
    axes.set_xlim(0, max(made_for["steps"], steps[-1]))
    axes.set_xlabel("step")
    _finish_cost(axes)
    return figure


def _of_run(run: RunRecord, dark: bool) -> "Figure":
    if not run.log:
        raise SparsityError(f"the run '{run.name}' has no log of its epochs to draw")
    epochs = epochs_in_a_row(run)
    figure = blank_figure(7.5, 5.6)
    above, below = figure.subplots(2, 1, sharex=True)
    plain, asked = run.result["cost"]["plain"], run.result.get("asked") or {}
    for name in _drawn(asked):
        shares = [_share(record, name, plain) for record in run.log]
        if any(share is not None for share in shares):
            look: dict[str, Any] = {"color": COLOURS[name], "linewidth": 2.0 if name in (asked or {"macs": 0}) else 1.0}
            found = [(epoch, share) for epoch, share in zip(epochs, shares, strict=True) if share is not None]
            above.plot(*zip(*found, strict=True), label=NAMES[name], marker="o", markersize=3, **look)
    _mark_limits(above, {name: limit if limit <= 1 else limit / plain[name] for name, limit in asked.items()})
    _finish_cost(above)
    for key, colour in (("train_loss", ORANGE), ("validation_loss", GREEN), ("test_loss", BLUE)):
        found = [(epoch, record[key]) for epoch, record in zip(epochs, run.log, strict=True) if key in record]
        if found:
            below.plot(*zip(*found, strict=True), color=colour, label=key.replace("_", " "), marker="o", markersize=3)
    for moment, words in moments(run):
        _mark_moment(above, moment, words, dark)
        _mark_moment(below, moment, "", dark)
    below.set_ylim(bottom=0)
    below.set_ylabel("loss")
    below.set_xlabel("epoch")
    below.locator_params(axis="x", integer=True)
    below.legend(fontsize=8, frameon=False)
    plain_frame(below, "y")
    return figure


def epochs_in_a_row(run: RunRecord) -> list[int]:
    """The epoch of each record of the log, counted over all phases."""
    done, phase, last, rows = 0, None, 0, []
    for record in run.log:
        if record["phase"] != phase:
            done, phase = done + last, record["phase"]
        last = int(record["epoch"])
        rows.append(done + last)
    return rows


def moments(run: RunRecord) -> list[tuple[float, str]]:
    """When the network became small, in epochs counted over all phases, and in words what happened."""
    found: list[tuple[float, str]] = []
    phase = None
    for epoch, record in zip(epochs_in_a_row(run), run.log, strict=True):
        if record["phase"] == "retrain" != phase and phase is not None:
            found.append((epoch - record["epoch"], "is cut"))
        phase = record["phase"]
        found += [(epoch - record["epoch"] + moment, "becomes small") for moment in record.get("shrunk", [])]
    return found


def _drawn(limits: Mapping[str, float]) -> list[str]:
    """The costs to draw: MACs and parameters, and others where they are asked for."""
    return [name for name in NAMES if name in ("macs", "params") or name in limits]


def _share(record: Mapping[str, Any], name: str, plain: Mapping[str, Any]) -> float | None:
    if record.get(f"{name}_share") is not None:
        return float(record[f"{name}_share"])
    return None if record.get(name) is None or not plain.get(name) else float(record[name]) / float(plain[name])


def _mark_limits(axes: Any, limits: Mapping[str, float]) -> None:
    for name, limit in limits.items():
        words = f"budget: {limit:.3g} of {NAMES[name]}"
        axes.axhline(limit, color=COLOURS[name], linestyle="--", linewidth=1.2, label=words)


def _mark_moment(axes: Any, at: float, words: str, dark: bool) -> None:
    axes.axvline(at, color=theme(dark).quiet, linewidth=1.0)
    if words:
        axes.annotate(words, (at, 1), (4, -3), ("data", "axes fraction"), "offset points", va="top", fontsize=8)
        axes.texts[-1].set_color(theme(dark).ink)


def _finish_cost(axes: Any) -> None:
    axes.set_ylim(0, 1.05)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_ylabel("cost, share of the whole network")
    axes.legend(fontsize=8, frameon=False, loc="best")
    plain_frame(axes, "y")


def trade_off(runs: Sequence[Run], *, cost: str = "macs", dark: bool = False) -> "Figure":
    """How good several runs are, over what their compact networks cost: one point per run, a colour per method.

    Args:
        runs: folders of finished runs.
        cost: macs, params or bytes.
        dark: whether the picture is for dark paper.

    Needs the `report` extra.
    """
    require_one_of("cost", cost, COUNTED)
    records = [_read(run) for run in ([runs] if isinstance(runs, str | os.PathLike | RunRecord) else runs)]
    if not records:
        raise SparsityError("give the folders of one or more finished runs")
    figures = {record.headline[0] for record in records}
    if len(figures) > 1:
        raise SparsityError(f"these runs are judged by different figures: {', '.join(sorted(figures))}")
    figure = blank_figure(7.5, 4.5)
    axes = figure.add_subplot()
    percent = 100.0 if figures == {"accuracy"} else 1.0
    for number, method in enumerate(dict.fromkeys(record.method for record in records)):
        own = [record for record in records if record.method == method]
        at = [(100 * record.share(cost), percent * record.headline[1]) for record in own]
        look: dict[str, Any] = {"color": SERIES[number % len(SERIES)], "marker": MARKERS[number % len(MARKERS)]}
        axes.plot(*zip(*at, strict=True), linestyle="", markersize=7, label=method, **look)
        for place, record in zip(at, own, strict=True):
            if len(records) <= MOST_LABELS:
                words = axes.annotate(record.name, place, (6, 4), textcoords="offset points", fontsize=7)
                words.set(color=theme(dark).quiet, parse_math=False)
    axes.set_xlabel(f"{NAMES[cost]} left, % of the whole network")
    axes.set_ylabel("accuracy, %" if percent == 100 else figures.pop().replace("_", " "))
    axes.set_xlim(0, 105)
    legend = axes.legend(fontsize=8, frameon=False, title="method", title_fontproperties={"size": 8})
    legend.get_title().set_color(theme(dark).ink)
    plain_frame(axes, "both")
    return dressed(figure, dark)


def _read(run: Run) -> RunRecord:
    if not isinstance(run, str | os.PathLike | RunRecord):
        raise SparsityError(f"a run is the folder of a finished run, got {type(run).__name__}")
    return run if isinstance(run, RunRecord) else read_run(run)
