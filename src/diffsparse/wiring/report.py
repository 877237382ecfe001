"""What a run reports of the wiring it has learned."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn

from diffsparse.data.dataset import DataSet
from diffsparse.errors import SparsityError
from diffsparse.plot.picture import save_formats
from diffsparse.training.report import RunReport, cost_cells
from diffsparse.wiring.costs import wiring_cost
from diffsparse.wiring.graph import WiringGraph, wiring_graph
from diffsparse.wiring.picture import wiring_figure
from diffsparse.wiring.stage import wired_stages


def learned_wiring(model: nn.Module) -> WiringGraph | None:
    """The graph of a wired network as it is now; None for others, and where wired stages are not a chain."""
    if not wired_stages(model):
        return None
    try:
        return wiring_graph(model)
    except SparsityError:
        return None


def wiring_figures(graph: WiringGraph, size: int) -> dict[str, Any]:
    """Edges that are there, and what the live graph costs for an image of `size` pixels, by both conventions.

    "complete" is the graph with every usable edge.
    """
    complete = replace(
        graph, stages=tuple(replace(stage, edges=tuple(e | ~e for e in stage.edges)) for stage in graph.stages)
    )
    return {
        "edges": graph.edge_count,
        "usable_edges": graph.usable_edges,
        "one_hop": asdict(wiring_cost(graph, size)),
        "recursive": asdict(wiring_cost(graph, size, recursive=True)),
        "complete": asdict(wiring_cost(complete, size)),
    }


class WiringReport(RunReport):
    """Edges and costs of the live graph, and its picture.

    The compact form of a wired network holds its edges in dense layers, of which most entries may be zero: what counts
    there is the live graph.
    """

    caption = "wired networks: Mult-Adds and parameters of the live graph, in brackets of the complete one"

    def figures(self, model: nn.Module, data: DataSet, say: Callable[[str], None]) -> dict[str, Any] | None:
        graph = learned_wiring(model)
        if graph is None and wired_stages(model):
            say(
                "MACs and parameters are those of dense layers: to count the graph, a wired network needs a "
                "convolution 'stem', a sequence 'stages' of WiredStages and a linear 'classifier'"
            )
        return None if graph is None else wiring_figures(graph, size=data.input_shape[-1])

    def write(self, model: nn.Module, data: DataSet, folder: Path, say: Callable[[str], None]) -> None:
        """The picture `wiring` as SVG and PNG; a line for the user if matplotlib is missing."""
        graph = learned_wiring(model)
        assert graph is not None
        try:
            save_formats(wiring_figure(graph), folder, "wiring")
        except SparsityError as error:
            say(f"no picture of the wiring: {error}")

    def columns(self, result: dict[str, Any], cells: dict[str, str]) -> dict[str, str]:
        now, complete = (
            {"macs": cost["mult_adds"], "params": cost["params"] + cost["batch_norm_params"]}
            for cost in (result["wiring"]["recursive"], result["wiring"]["complete"])
        )
        return cells | {"zeros": f"{cells['zeros']} of edges"} | cost_cells(now, complete)
