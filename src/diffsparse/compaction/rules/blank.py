"""Tensors that hold one number: zeros and ones of any shape."""

import numpy as np
from torch import Tensor

from diffsparse.compaction.graph import Graph, Node
from diffsparse.compaction.rules.base import Rule, unite


class Blank(Rule):
    """One number everywhere; of a tensor whose shape it takes, nothing is read."""

    reason = "a result that is no tensor"

    def infer(self, node: Node, graph: Graph) -> bool:
        out = node.output
        if not isinstance(node.result, Tensor):
            return False
        axes = node.inputs[0].axes if node.op.endswith("_like") else ()
        out.track(axes or (), np.ones(int(np.prod([out.shape[a] for a in axes or ()])), bool), node.result)
        return True

    def needs(self, node: Node) -> None:
        """Nothing is read."""

    def unify_widths(self, node: Node) -> bool:
        return node.op.endswith("_like") and node.inputs[0].axes is not None and unite([node.inputs[0], node.output])


OPERATORS: dict[str, Rule] = dict.fromkeys(
    ["zeros", "new_zeros", "zeros_like", "ones", "new_ones", "ones_like"], Blank()
)
