"""Learned graphs: scores, exports to other libraries, and pictures."""

from diffsparse.graphs.drawing import draw_graph, draw_heat_map
from diffsparse.graphs.export import Edge, edges, to_edge_index, to_networkx, to_scipy, write_edge_list
from diffsparse.graphs.forecast import (
    ForecastScores,
    error_sums,
    forecast_scores,
    mean_absolute_error,
    mean_relative_error,
    root_mean_square_error,
)
from diffsparse.graphs.layout import plane_layout
from diffsparse.graphs.scores import hop_counts, learned_relationship, nonzeros, within_hops
from diffsparse.plot.picture import save_picture

__all__ = [
    "Edge",
    "ForecastScores",
    "draw_graph",
    "draw_heat_map",
    "edges",
    "error_sums",
    "forecast_scores",
    "hop_counts",
    "learned_relationship",
    "mean_absolute_error",
    "mean_relative_error",
    "nonzeros",
    "plane_layout",
    "root_mean_square_error",
    "save_picture",
    "to_edge_index",
    "to_networkx",
    "to_scipy",
    "within_hops",
    "write_edge_list",
]
