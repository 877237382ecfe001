"""Learned graphs: scores, exports to other libraries, and pictures."""

from diffsparse.graphs.drawing import draw_graph, draw_heat_map, plane_layout
from diffsparse.graphs.export import Edge, edges, to_edge_index, to_networkx, to_scipy, write_edge_list
from diffsparse.graphs.scores import hop_counts, learned_relationship, nonzeros, within_hops
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
