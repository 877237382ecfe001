"""Results of runs side by side."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from diffsparse.train.methods import NO_STRENGTH


def results_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """One row a run, by its name."""
    caption = "compact network, one input; in brackets the share of the plain one"
    if any("wiring" in result for result in results.values()):
        caption += "\nwired networks: Mult-Adds and parameters of the live graph, in brackets of the complete one"
    table = Table(caption=caption)
    table.add_column("run", overflow="fold")
    for heading in ("method", "lambda", *_headlines(results), "zeros", "MACs", "params", "file kB", "train s"):
        table.add_column(heading, justify="right", overflow="fold")
    for name, result in results.items():
        table.add_row(name, *_cells(result, _headlines(results)))
    return table


def _headlines(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    found: dict[str, None] = {}
    for result in results.values():
        found |= dict.fromkeys(key for key in result["figures"]["compact"] if key != "loss")
    return list(found)


def _cells(result: Mapping[str, Any], headlines: list[str]) -> list[str]:
    settings, figures = result["config"]["sparsifying"], result["figures"]["compact"]
    macs, params = _costs(result)
    return [
        settings["method"],
        "-" if settings["method"] in NO_STRENGTH else f"{settings['strength']:g}",
        *(_figure(name, figures.get(name)) for name in headlines),
        f"{result['zeros']['fraction']:.1%}{' of edges' if 'wiring' in result else ''}",
        macs,
        params,
        f"{result['cost']['compact']['file_bytes'] / 1e3:,.0f}",
        f"{sum(result['training_seconds'].values()):,.0f}",
    ]


def _costs(result: Mapping[str, Any]) -> tuple[str, str]:
    """MACs and parameters, and their shares of what the method began with.

    The compact form of a wired network holds its edges in dense layers, of which most entries may be zero: what counts
    there is the live graph.
    """
    if "wiring" in result:
        (macs, params), (all_macs, all_params) = (
            (cost["mult_adds"], cost["params"] + cost["batch_norm_params"])
            for cost in (result["wiring"]["recursive"], result["wiring"]["complete"])
        )
    else:
        (macs, params), (all_macs, all_params) = (
            (cost["macs"], cost["params"]) for cost in (result["cost"]["compact"], result["cost"]["plain"])
        )
    return f"{_short(macs)} ({macs / all_macs:.0%})", f"{_short(params)} ({params / all_params:.0%})"


def _short(number: int) -> str:
    """Three digits and a unit.

    Example:
        >>> _short(763_520), _short(1_050)
        ('764k', '1.05k')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2%}" if name == "accuracy" else f"{value:.4g}"
