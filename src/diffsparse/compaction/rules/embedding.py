"""`F.embedding`: a column of the table that holds one number is a constant channel."""

from typing import Any

from torch import nn

from diffsparse.compaction.actions import TensorSlice
from diffsparse.compaction.graph import NO_CHANNELS, Graph, Node, every, indices, some
from diffsparse.compaction.rules.base import Rule, argument, numbers_along, read_all
from diffsparse.compaction.rules.layer import Layer, LayerRule


class Embedding(LayerRule):
    """A layer without inputs to choose from: rows are the columns of its table."""

    reason = "a table that is computed, or changed by looking something up"
    modules = (nn.Embedding,)
    roles = ("weight",)

    def infer(self, node: Node, graph: Graph) -> bool:
        axis = len(node.output.shape) - 1
        layer = self.layer_of(node, axis)
        if layer is None or layer.computed or argument(node, 3, "max_norm") is not None:
            return False
        constant, _ = numbers_along(graph.tensors[layer.tensors["weight"]], 1)
        node.layer, layer.columns = layer, NO_CHANNELS
        node.output.track(axis, constant, node.result)
        return True

    def needs(self, node: Node) -> None:
        layer, out = node.layer, node.output
        layer.rows = out.need & ~layer.fixed_outputs if layer.free else out.need.copy()
        if not some(layer.rows):
            # the shape of the output does not follow from that of the input alone
            layer.rows[0] = True
        read_all(layer.operand)

    def unify_widths(self, node: Node) -> bool:
        layer: Layer = node.layer
        if layer.free:
            return layer.keep_computed()
        changed = layer.agree()
        layer.rows = node.output.keep
        return changed

    def slices(self, node: Node, graph: Graph) -> dict[str, TensorSlice]:
        layer, name = node.layer, node.layer.tensors["weight"]
        if every(layer.rows):
            return {}
        return {name: TensorSlice(dims={1: indices(layer.rows)}, shape=list(graph.tensors[name].shape))}

    def true_attributes(self, module: Any) -> dict[str, int]:
        return {"embedding_dim": module.weight.shape[1]}


OPERATORS: dict[str, Rule] = {"embedding": Embedding()}
