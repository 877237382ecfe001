"""Rules, a few per file, and what they are made of."""

from diffsparse.compaction.rules import batch_norm, concat, matrix, movement, pointwise, spatial
from diffsparse.compaction.rules.base import OPAQUE, Rule, argument, pin, read_all, unite, widen
from diffsparse.compaction.rules.pointwise import POINTWISE
from diffsparse.compaction.rules.registry import RULES, describe, register_rule, true_attributes

for _file in (pointwise, spatial, movement, concat, matrix, batch_norm):
    for _op, _rule in _file.OPERATORS.items():
        register_rule(_op, _rule)

__all__ = [
    "OPAQUE",
    "POINTWISE",
    "RULES",
    "Rule",
    "argument",
    "describe",
    "pin",
    "read_all",
    "register_rule",
    "true_attributes",
    "unite",
    "widen",
]
