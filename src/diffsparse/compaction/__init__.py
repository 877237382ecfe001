"""From a gated model to a physically smaller one that computes the same thing."""

from diffsparse.compaction.apply import apply_plan
from diffsparse.compaction.graph import Graph, Node, Value
from diffsparse.compaction.live import LiveMacs, live_macs, live_widths
from diffsparse.compaction.optimizer import slice_optimizer
from diffsparse.compaction.pipeline import Compacted, compact
from diffsparse.compaction.plan import Plan
from diffsparse.compaction.rules import Rule, register_rule

__all__ = ["Compacted", "Graph", "LiveMacs", "Node", "Plan", "Rule", "Value", "apply_plan", "compact", "live_macs"]
__all__ += ["live_widths", "register_rule", "slice_optimizer"]
