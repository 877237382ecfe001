"""One rule an operator, a few a file."""

from diffsparse.compaction.graph import Graph, Node
from diffsparse.compaction.rules import concat, layers, movement, pointwise, spatial
from diffsparse.compaction.rules.base import OPAQUE, Rule

RULES: dict[str, Rule] = {
    **pointwise.OPERATORS,
    **spatial.OPERATORS,
    **movement.OPERATORS,
    **concat.OPERATORS,
    **layers.OPERATORS,
}


def describe(node: Node, graph: Graph) -> Rule:
    """The rule of `node`, once its facts are derived; the opaque rule where none applies."""
    rule = RULES.get(node.op)
    if rule is not None and node.outputs:
        if rule.infer(node, graph):
            return rule
        node.reason = rule.reason
    return OPAQUE


__all__ = ["OPAQUE", "RULES", "Rule", "describe"]
