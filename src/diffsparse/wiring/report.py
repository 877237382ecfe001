"""What a run says of the wiring it has learned."""

from dataclasses import asdict, replace
from typing import Any

from torch import nn

from diffsparse.errors import SparsityError
from diffsparse.traffic.report import save_formats
from diffsparse.training.folder import RunFolder
from diffsparse.training.watcher import Watcher
from diffsparse.wiring import WiringGraph, wiring_cost, wiring_graph
from diffsparse.wiring.methods import wired_stages
from diffsparse.wiring.picture import wiring_figure


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


def draw_learned_wiring(graph: WiringGraph, folder: RunFolder, watcher: Watcher) -> None:
    """The picture `wiring` as SVG and PNG; only a word to the watcher where there is nothing to draw with."""
    try:
        save_formats(wiring_figure(graph), folder, "wiring")
    except SparsityError as error:
        watcher.say(f"no picture of the wiring: {error}")
