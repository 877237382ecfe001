"""From a gated model to a physically smaller one that computes the same thing."""

from diffsparse.compact.compact import Compacted, compact
from diffsparse.compact.plan import Plan

__all__ = ["Compacted", "Plan", "compact"]
