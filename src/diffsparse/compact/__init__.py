"""From a gated model to a physically smaller one that computes the same thing."""

from diffsparse.compact.compact import Compacted, compact
from diffsparse.compact.optimizer import slice_optimizer
from diffsparse.compact.plan import Plan
from diffsparse.compact.replay import apply_plan

__all__ = ["Compacted", "Plan", "apply_plan", "compact", "slice_optimizer"]
