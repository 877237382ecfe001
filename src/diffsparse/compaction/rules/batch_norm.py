"""Batch norms."""

from typing import ClassVar

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from diffsparse.compaction.graph import Graph, Node, as_array
from diffsparse.compaction.rules.base import Rule, argument, pin, unite
from diffsparse.compaction.rules.layer import LayerRule


class BatchNorm(LayerRule):
    """A channel with scale zero is its shift; a fixed channel stays fixed."""

    reason = "channels that do not lie along dimension 1"
    modules = (_NormBase,)
    roles: ClassVar = {
        "running_mean": (1, "running_mean"),
        "running_var": (2, "running_var"),
        "weight": (3, "weight"),
        "bias": (4, "bias"),
    }

    def infer(self, node: Node, graph: Graph) -> bool:
        layer = self.layer_of(node, 1)
        if layer is None:
            return False
        layer.eps = argument(node, 7, "eps", 1e-5)
        own_statistics = argument(node, 5, "training", False) or "running_mean" not in layer.tensors
        fixed = None if layer.input.axis is None or own_statistics else layer.input.fixed
        if "weight" in layer.tensors:
            switched_off = as_array(graph.tensors[layer.tensors["weight"]]) == 0
            fixed = switched_off if fixed is None else switched_off | fixed
        node.layer = layer
        node.output.track(1, fixed, node.result)
        return True

    def needs(self, node: Node) -> None:
        layer, out = node.layer, node.output
        layer.rows = layer.columns = out.need & ~out.fixed if layer.free else out.need.copy()
        layer.read_operand()

    def unify_widths(self, node: Node) -> bool:
        layer, out = node.layer, node.output
        source = layer.input
        changed: bool = layer.keep_operand()
        if layer.free:
            return changed
        changed = (pin([out]) if source.axis is None else unite([source, out])) or changed
        changed = layer.agree() or changed
        layer.rows = layer.columns = out.keep
        return bool(changed)

    def true_attributes(self, module: nn.Module) -> dict[str, int]:
        assert isinstance(module, _NormBase)
        like = module.running_mean if module.running_mean is not None else module.weight
        return {} if like is None else {"num_features": like.shape[0]}


OPERATORS: dict[str, Rule] = {"batch_norm": BatchNorm()}
