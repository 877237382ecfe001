"""Operators along some dimensions: softmax, norms over channels or groups; other dimensions are treated one by one."""

import numpy as np
from torch import Tensor

from diffsparse.compaction.graph import Graph, Node, Shape, Value
from diffsparse.compaction.masks import as_array, some
from diffsparse.compaction.rules.base import EachChannel, Rule, argument, pin, read_all, unite
from diffsparse.compaction.rules.dimensions import agree_aligned
from diffsparse.compaction.rules.grid import Grid, flattened, read
from diffsparse.compaction.rules.layer import Layer
from diffsparse.compaction.rules.layers import BatchNorm
from diffsparse.compaction.rules.tracks import Tracks


class Along(Rule):
    """Every entry reads all entries along the dimensions that the operator works on, and nothing else."""

    reason = "an operation without a dimension"

    def dims(self, node: Node) -> Shape:
        """Dimensions that it works on; empty if they are not known."""
        dim = argument(node, 1, "dim")
        if dim is None or isinstance(dim, bool):
            return ()
        return tuple(d % len(node.output.shape) for d in (dim if isinstance(dim, tuple | list) else [dim]))

    def fixed(self, node: Node, source: Value) -> Grid:
        """Where the result is one number, whatever the size."""
        return np.zeros((1,) * len(source.shape), bool)

    def infer(self, node: Node, graph: Graph) -> bool:
        source, out, dims = node.inputs[0], node.output, self.dims(node)
        if source.axes is None or not dims or out.shape != source.shape or not isinstance(node.result, Tensor):
            return False
        out.track(source.axes, flattened(self.fixed(node, source), out, source.axes), node.result)
        node.details = dims, np.zeros((1,) * len(out.shape), bool)
        return True

    def needs(self, node: Node) -> None:
        out, (dims, off) = node.output, node.details
        needed, fixed = out.need.reshape(out.grid), out.fixed.reshape(out.grid)
        read(node.inputs[0], np.asarray((needed & ~fixed).any(dims, keepdims=True)))
        # what is fixed because its operand is, is read there
        read(node.inputs[0], needed & fixed & ~off)
        for stored in node.inputs[1:]:
            read_all(stored)

    def unify_widths(self, node: Node) -> bool:
        source, out = node.inputs[0], node.output
        if self.follows(node):
            return unite([source, out])
        apart = tuple(dim - len(out.shape) for dim in node.details[0])
        return pin(node.inputs[1:]) or agree_aligned([source, out], apart)

    def tie(self, node: Node, tracks: Tracks) -> None:
        source, out = node.inputs[0], node.output
        if not {*(source.axes or ()), *(out.axes or ())}.isdisjoint(node.details[0]):
            super().tie(node, tracks)
        else:
            tracks.tie(source, out)

    def follows(self, node: Node) -> bool:
        """Whether any width will do."""
        source = node.inputs[0]
        return source.axis is not None and source.axis == node.output.axis and source.axis not in node.details[0]

    def refusal(self, node: Node) -> str:
        return "" if self.follows(node) else f"{node.op}: all channels are read together"


class Normalise(Along):
    """`F.normalize`: zero stays zero."""

    def dims(self, node: Node) -> Shape:
        return (argument(node, 2, "dim", 1) % len(node.output.shape),)

    def fixed(self, node: Node, source: Value) -> Grid:
        return source.zero.reshape(source.grid)


class LayerNorm(Along):
    """A channel with scale zero is its shift; constants that are normalised together stay constant."""

    def dims(self, node: Node) -> Shape:
        count = len(argument(node, 1, "normalized_shape"))
        return tuple(range(len(node.output.shape) - count, len(node.output.shape)))

    def infer(self, node: Node, graph: Graph) -> bool:
        source, out, dims = node.inputs[0], node.output, self.dims(node)
        # the fourth argument of rms_norm is a number
        stored = [argument(node, 2, "weight"), argument(node, 3, "bias") if node.op == "layer_norm" else None]
        if not isinstance(node.result, Tensor) or any(v is not None and _name(v) is None for v in stored):
            return False
        # weights for whole images would have one channel per pixel
        axes = tuple(sorted({*(source.axes or ()), *(dims if len(dims) == 1 else ())}))
        off: Grid = np.zeros((1,) * len(out.shape), bool)
        if stored[0] is not None and len(dims) == 1:
            off = (as_array(graph.tensors[stored[0].parameter].detach()) == 0).reshape(*off.shape[:-1], -1)
        constant = source.fixed.reshape(source.grid) if source.axes is not None else np.zeros_like(off)
        together = constant.all(dims, keepdims=True) if len(dims) == 1 or not any(stored) else np.zeros_like(off)
        out.track(axes, flattened(off | together, out, axes), node.result)
        node.details = dims, off
        return True


class GroupNorm(Rule):
    """As a layer norm within each group of channels; widths are kept."""

    reason = "a scale or a shift that is computed"

    def infer(self, node: Node, graph: Graph) -> bool:
        source, out = node.inputs[0], node.output
        weight, bias = (argument(node, at, name) for at, name in ((2, "weight"), (3, "bias")))
        if len(source.shape) < 2 or any(v is not None and _name(v) is None for v in (weight, bias)):
            return False
        fixed = np.zeros(out.shape[1], bool)
        if source.axis == 1:
            fixed = self._groups(node, source.fixed).all(1).repeat(out.shape[1] // argument(node, 1, "num_groups"))
        if weight is not None:
            fixed = fixed | (as_array(graph.tensors[weight.parameter].detach()) == 0)
        out.track(1, fixed, node.result)
        return True

    @staticmethod
    def _groups(node: Node, mask: Grid) -> Grid:
        return mask.reshape(argument(node, 1, "num_groups"), -1)

    def needs(self, node: Node) -> None:
        source, out = node.inputs[0], node.output
        for stored in node.inputs[1:]:
            read_all(stored)
        if source.axis == 1:
            groups = self._groups(node, out.need & ~out.fixed)
            source.need |= np.repeat(groups.any(1), groups.shape[1]) | (out.need & source.fixed)
        elif some(out.need & ~out.fixed):
            read_all(source)

    def refusal(self, node: Node) -> str:
        return f"{node.op}: the channels of a group are read together"


class BareInstanceNorm(EachChannel):
    """An instance norm without weights and statistics; it keeps its width."""

    def infer(self, node: Node, graph: Graph) -> bool:
        return node.inputs[0].axis == 1 and super().infer(node, graph)

    def unify_widths(self, node: Node) -> bool:
        return pin([*node.inputs, *node.outputs])

    def refusal(self, node: Node) -> str:
        return f"{node.op}: the module insists on its number of channels"


class InstanceNorm(BatchNorm):
    """A batch norm whose statistics may be those of each image: a constant then becomes its shift."""

    otherwise = BareInstanceNorm()

    def keeps_constants(self, node: Node, layer: Layer) -> bool:
        return True

    def infer(self, node: Node, graph: Graph) -> bool:
        # without tensors, the module could not be told its new width
        return len(node.inputs) > 1 and super().infer(node, graph)


def _name(value: object) -> str | None:
    return value.parameter if isinstance(value, Value) else None


OPERATORS: dict[str, Rule] = {
    **dict.fromkeys(["softmax", "log_softmax", "softmin"], Along()),
    "normalize": Normalise(),
    **dict.fromkeys(["layer_norm", "rms_norm"], LayerNorm()),
    "group_norm": GroupNorm(),
    "instance_norm": InstanceNorm(),
}
