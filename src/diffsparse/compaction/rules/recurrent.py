"""LSTM, GRU and plain recurrent layers: inputs that are zero leave the weights of the first layer."""

from math import prod
from typing import Any

import numpy as np
from torch import nn

from diffsparse.compaction.graph import Call, Graph, Node, Value
from diffsparse.compaction.masks import every, indices
from diffsparse.compaction.rules.base import Rule, pin
from diffsparse.compaction.rules.layer import Layer, LayerRule
from diffsparse.compaction.tensor_slice import TensorSlice


class Recurrent(LayerRule):
    """Everything that it computes is read, and its hidden state keeps its width."""

    reason = "a recurrent layer on packed sequences, or with weights that are computed"
    modules = (nn.RNNBase,)
    roles = ("weight_ih_l0", "weight_ih_l0_reverse")

    def operand_and_tensors(self, node: Node) -> tuple[Value, dict[str, Any]]:
        weights = node.args[2] if len(node.args) > 2 and isinstance(node.args[2], tuple) else ()
        found = {str(value.parameter).rpartition(".")[2]: value for value in weights if isinstance(value, Value)}
        return node.args[0], {role: found.get(role) for role in self.roles}

    def infer(self, node: Node, graph: Graph) -> bool:
        out = node.output
        layer = self.layer_of(node, len(out.shape) - 1)
        if layer is None or layer.computed or "weight_ih_l0" not in layer.tensors:
            return False
        layer.mixes, layer.inputs = True, layer.operand.shape[-1]
        out.track(len(out.shape) - 1)
        node.layer = layer
        return True

    def needs(self, node: Node) -> None:
        layer: Layer = node.layer
        layer.rows = np.ones(node.output.channels, bool)
        layer.columns = np.ones(layer.inputs, bool)
        if layer.input.axis is not None:
            layer.columns &= ~(layer.fixed_inputs & (layer.input.numbers == 0))
        if layer.free and not layer.columns.any():
            layer.columns[0] = True
        if not layer.free:
            layer.columns[:] = True
        layer.read_operand()
        for value in node.inputs:
            if value is not layer.operand:
                value.need[:] = True

    def unify_widths(self, node: Node) -> bool:
        layer: Layer = node.layer
        others = [value for value in (*node.inputs, *node.outputs) if value is not layer.operand]
        changed = layer.keep_operand() if layer.free else pin([layer.operand])
        changed = (bool(layer.twins) and layer.agree()) or changed
        return pin(others) or changed

    def is_all_of(self, call: Call, node: Node) -> bool:
        # the module returns the output and the last state
        return call.input is node.layer.operand

    def refusal(self, node: Node) -> str:
        return "" if node.layer.free else f"{node.op}: a recurrent layer that is not called once with one argument"

    def slices(self, node: Node, graph: Graph) -> dict[str, TensorSlice]:
        layer: Layer = node.layer
        if every(layer.columns):
            return {}
        kept = indices(layer.columns)
        return {
            name: TensorSlice(dims={1: kept}, shape=list(graph.tensors[name].shape)) for name in layer.tensors.values()
        }

    def macs(self, node: Node, graph: Graph) -> tuple[int, int]:
        layer: Layer = node.layer
        rows = sum(graph.tensors[name].shape[0] for name in layer.tensors.values())
        each = prod(layer.operand.shape[:-1]) * rows
        return each * layer.inputs, each * int(layer.columns.sum())

    def true_attributes(self, module: Any) -> dict[str, int]:
        return {"input_size": module.weight_ih_l0.shape[1]}


OPERATORS: dict[str, Rule] = dict.fromkeys(["lstm", "gru", "rnn_tanh", "rnn_relu"], Recurrent())
