"""Learned graphs: scores, exports to other libraries, and pictures."""

from diffsparse.graphs.adjacency import (
    Edge,
    edges,
    hop_counts,
    learned_relationship,
    nonzeros,
    to_edge_index,
    to_networkx,
    to_scipy,
    within_hops,
    write_edge_list,
)
from diffsparse.graphs.drawing import draw_graph, draw_heat_map, plane_layout
from diffsparse.plot.picture import save_picture

__all__ = [
    "Edge",
    "draw_graph",
    "draw_heat_map",
    "edges",
    "hop_counts",
    "learned_relationship",
    "nonzeros",
    "plane_layout",
    "save_picture",
    "to_edge_index",
    "to_networkx",
    "to_scipy",
    "within_hops",
    "write_edge_list",
]
