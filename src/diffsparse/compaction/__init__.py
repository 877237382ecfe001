"""From a gated model to a physically smaller one that computes the same thing."""

from diffsparse.compaction.apply import apply_plan
from diffsparse.compaction.graph import Graph, Node, Value
from diffsparse.compaction.optimizer import slice_optimizer
from diffsparse.compaction.pipeline import Compacted, LiveMacs, compact, live_macs
from diffsparse.compaction.plan import Plan
from diffsparse.compaction.rules import Rule, register_rule

__all__ = ["Compacted", "Graph", "LiveMacs", "Node", "Plan", "Rule", "Value", "apply_plan", "compact", "live_macs"]
__all__ += ["register_rule", "slice_optimizer"]
