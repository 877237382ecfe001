"""Networks whose wiring is learned: channels are nodes, and edges between them live or die."""

from diffsparse.wiring.compaction import CompactWiring, compact_wiring
from diffsparse.wiring.graph import WiringCost, WiringGraph, wiring_cost, wiring_graph
from diffsparse.wiring.picture import draw_wiring
from diffsparse.wiring.rules import Differentiable, EdgeRule, Edges, FixedRandom, Plain, Proximal, StageShape, TopK
from diffsparse.wiring.stage import WiredStage

__all__ = [
    "CompactWiring",
    "Differentiable",
    "EdgeRule",
    "Edges",
    "FixedRandom",
    "Plain",
    "Proximal",
    "StageShape",
    "TopK",
    "WiredStage",
    "WiringCost",
    "WiringGraph",
    "compact_wiring",
    "draw_wiring",
    "wiring_cost",
    "wiring_graph",
]
