"""`F.embedding`, or a stored table that is indexed: a column that holds one number is a constant channel."""

from typing import Any, ClassVar

from torch import nn

from diffsparse.compaction.graph import Graph, Node, Value
from diffsparse.compaction.masks import NO_CHANNELS, every, indices, some
from diffsparse.compaction.rules.base import Rule, argument, numbers_along, read_all
from diffsparse.compaction.rules.layer import Layer, LayerRule
from diffsparse.compaction.tensor_slice import TensorSlice


class Embedding(LayerRule):
    """A layer without inputs to choose from: rows are the columns of its table."""

    reason = "a table that is computed, or changed by looking something up"
    modules: ClassVar[tuple[type[nn.Module] | str, ...]] = (nn.Embedding,)
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


class Lookup(Embedding):
    """`table[index]`, as in a bias for relative positions with one column per head."""

    modules = ()

    def infer(self, node: Node, graph: Graph) -> bool:
        if node.op != "getitem" or len(node.inputs) != 2 or not isinstance(node.args[1], Value):
            return False
        table, index = node.inputs
        picks_rows = len(table.shape) == 2 and node.output.shape == (*index.shape, table.shape[1])
        return picks_rows and table.parameter is not None and super().infer(node, graph)

    def operand_and_tensors(self, node: Node) -> tuple[Value, dict[str, Any]]:
        table, index = node.inputs
        return index, {"weight": table}


OPERATORS: dict[str, Rule] = {"embedding": Embedding()}
