"""Results of runs side by side."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from diffsparse.training.methods import NO_STRENGTH

_LAST = ("entries", "LR 1", "LR 2", "zeros", "MACs", "params", "file kB", "train s")
"""Columns behind those of method and figures."""


def results_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """One row a run, by its name."""
    captions = []
    if any("graph" not in result for result in results.values()):
        captions.append("compact network, one input; in brackets the share of the plain one")
    if any("wiring" in result for result in results.values()):
        captions.append("wired networks: Mult-Adds and parameters of the live graph, in brackets of the complete one")
    if any("graph" in result for result in results.values()):
        captions.append("LR: share of a graph's weights that lies within one and within two links on the map")
    table = Table(caption="\n".join(captions))
    table.add_column("run", overflow="fold")
    rows = {name: _cells(result) for name, result in results.items()}
    found = dict.fromkeys(heading for cells in rows.values() for heading in cells)
    headings = sorted(found, key=lambda heading: _LAST.index(heading) if heading in _LAST else -1)
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    for name, cells in rows.items():
        table.add_row(name, *(cells.get(heading, "-") for heading in headings))
    return table


def _cells(result: Mapping[str, Any]) -> dict[str, str]:
    """What the table says of a run, by the heading of its column."""
    settings, figures = result["config"]["sparsifying"], result["figures"]["compact"]
    cells = {
        "method": settings["method"],
        "lambda": "-" if settings["method"] in NO_STRENGTH else f"{settings['strength']:g}",
    }
    cells |= {name: _figure(name, value) for name, value in figures.items() if name != "loss"}
    if "graph" in result:
        cells |= _graph_cells(result["graph"])
    else:
        macs, params = _costs(result)
        cells |= {
            "zeros": f"{result['zeros']['fraction']:.1%}{' of edges' if 'wiring' in result else ''}",
            "MACs": macs,
            "params": params,
            "file kB": f"{result['cost']['compact']['file_bytes'] / 1e3:,.0f}",
        }
    return cells | {"train s": f"{sum(result['training_seconds'].values()):,.0f}"}


def _graph_cells(graph: Mapping[str, Any]) -> dict[str, str]:
    kept = f"{graph['nonzeros']:,} ({graph['nonzeros'] / graph['entries']:.1%})"
    return {"entries": kept} | {f"LR {k}": f"{graph[f'lr{k}']:.3f}" for k in (1, 2) if f"lr{k}" in graph}


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


def _figure(name: str, value: float) -> str:
    return f"{value:.2%}" if name == "accuracy" else f"{value:.4g}"
