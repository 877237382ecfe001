"""From a gated model to a physically smaller one that computes the same thing."""

from diffsparse.compaction.optimizer import slice_optimizer
from diffsparse.compaction.pipeline import Compacted, compact
from diffsparse.compaction.plan import Plan
from diffsparse.compaction.replay import apply_plan

__all__ = ["Compacted", "Plan", "apply_plan", "compact", "slice_optimizer"]
