"""Concatenation along the channels: their layouts one behind the other."""

import numpy as np
from torch import Tensor

from diffsparse.compaction.graph import Graph, Mask, Node, Value
from diffsparse.compaction.rules.base import Rule, argument, widen


class Concat(Rule):
    """`torch.cat` along the channel axis."""

    reason = "a concatenation along another dimension than the channels"

    def infer(self, node: Node, graph: Graph) -> bool:
        parts = argument(node, 0, "tensors")
        if not isinstance(node.result, Tensor) or any(v.channel_of_entry is not None for v in parts):
            return False
        dim = argument(node, 1, "dim", 0) % len(node.output.shape)
        axes = {value.axis for value in parts if value.axis is not None}
        if axes != {dim} or any(len(value.shape) != len(node.output.shape) for value in parts):
            return False
        fixed = [v.fixed if v.axis is not None else np.zeros(v.shape[dim], bool) for v in parts]
        node.output.track(dim, np.concatenate(fixed), node.result)
        return True

    @staticmethod
    def _pieces(node: Node) -> list[tuple[Value, slice]]:
        pieces, start = [], 0
        assert node.output.axis is not None
        for value in argument(node, 0, "tensors"):
            stop = start + value.shape[node.output.axis]
            pieces.append((value, slice(start, stop)))
            start = stop
        return pieces

    def needs(self, node: Node) -> None:
        for value, piece in self._pieces(node):
            if value.axis is not None:
                value.need |= node.output.need[piece]

    def unify_widths(self, node: Node) -> bool:
        changed = False
        for value, piece in self._pieces(node):
            if value.axis is None:
                full: Mask = np.zeros(node.output.channels, bool)
                full[piece] = True
                changed |= widen(node.output, full)
                continue
            changed |= widen(value, node.output.keep[piece])
            mine = np.zeros(node.output.channels, bool)
            mine[piece] = value.keep
            changed |= widen(node.output, mine)
        return changed


OPERATORS: dict[str, Rule] = {"cat": Concat()}
