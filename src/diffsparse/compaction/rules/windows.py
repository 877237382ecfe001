"""`F.unfold` and `F.fold`: each channel of an image is a block of channels, one per place in the window."""

import numpy as np

from diffsparse.compaction.graph import Graph, Node
from diffsparse.compaction.rules.base import Rule, argument
from diffsparse.compaction.rules.dimensions import widen_both
from diffsparse.compaction.rules.movement import Movement


class Unfold(Rule):
    """Windows of an image become columns; with zero padding, a constant other than zero varies."""

    reason = "channels that do not lie along dimension 1"
    # the method of the same name moves entries into a new dimension
    otherwise = Movement()

    def infer(self, node: Node, graph: Graph) -> bool:
        source, out = node.inputs[0], node.output
        if source.axis != 1 or len(source.shape) != 4 or len(out.shape) != 3:
            return False
        padding = argument(node, 3, "padding", 0)
        padded = any(padding) if isinstance(padding, tuple | list) else bool(padding)
        node.details = np.repeat(np.arange(source.channels), out.shape[1] // source.channels)
        out.track(1, (source.zero if padded else source.fixed)[node.details], node.result)
        return True

    def needs(self, node: Node) -> None:
        node.inputs[0].need[node.details[node.output.need]] = True

    def unify_widths(self, node: Node) -> bool:
        return widen_both(node.inputs[0], node.output, node.details)


class Fold(Rule):
    """Columns are added up to an image: zero if all columns of the channel are."""

    reason = "channels that do not lie along dimension 1"

    def infer(self, node: Node, graph: Graph) -> bool:
        source, out = node.inputs[0], node.output
        if source.axis != 1 or len(source.shape) != 3 or len(out.shape) != 4:
            return False
        node.details = np.repeat(np.arange(out.shape[1]), source.channels // out.shape[1])
        out.track(1, np.logical_and.reduce(source.zero.reshape(out.shape[1], -1), axis=1), node.result)
        return True

    def needs(self, node: Node) -> None:
        node.inputs[0].need |= node.output.need[node.details]

    def unify_widths(self, node: Node) -> bool:
        return widen_both(node.output, node.inputs[0], node.details)


OPERATORS: dict[str, Rule] = {"unfold": Unfold(), "fold": Fold()}
