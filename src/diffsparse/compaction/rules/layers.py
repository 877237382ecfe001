"""Layers with weights: convolutions, linear layers, batch norms."""

from math import prod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from diffsparse.compaction.graph import Graph, Node
from diffsparse.compaction.masks import Mask, as_array, every, some, without
from diffsparse.compaction.rules.base import Rule, argument, pin, unite
from diffsparse.compaction.rules.groups import ragged_pays, regular
from diffsparse.compaction.rules.layer import Layer, LayerRule
from diffsparse.compaction.rules.merge import with_fewest_alike
from diffsparse.compaction.rules.tracks import Tracks


class Linear(LayerRule):
    """Every output reads the inputs it has weights for."""

    reason = "weights that are computed where more is done than one layer"
    modules: ClassVar[tuple[type[nn.Module] | str, ...]] = (nn.Linear,)
    roles = ("weight", "bias")
    spatial: int = 0
    """How many dimensions lie behind the channels."""
    transposed: ClassVar[bool] = False

    def infer(self, node: Node, graph: Graph) -> bool:
        out = node.output
        axis = len(out.shape) - 1 - self.spatial
        layer = self.layer_of(node, axis) if axis >= 0 else None
        if layer is None or not layer.has("weight"):
            return False
        weight = layer.held("weight", graph)
        layer.mixes, layer.transposed, layer.folds = True, self.transposed, True
        if self.spatial:
            padding = argument(node, 4, "padding", 0)
            padded = padding not in (0, "valid") and any(padding if isinstance(padding, tuple) else [padding])
            layer.groups, layer.folds = argument(node, 6, "groups", 1), not padded and not self.transposed
        layer.inputs = weight.shape[0] if self.transposed else weight.shape[1] * layer.groups
        layer.pairs = self._pairs(weight, layer.groups)
        node.layer = layer
        out.track(axis, self._fixed(layer, out.shape[axis]), node.result)
        return True

    def _pairs(self, weight: torch.Tensor, groups: int) -> Mask | None:
        """As `Layer.pairs` has them."""
        nonzero = weight.bool()
        # this is the usual case, and the fastest to check
        if groups == 1 and np.count_nonzero(nonzero.numpy(force=True)) == weight.numel():
            return None
        pairs: Mask = as_array(nonzero.flatten(2).any(2) if weight.dim() > 2 else nonzero)
        if self.transposed:
            # (inputs, outputs of a group) to (outputs, inputs of a group)
            blocks = pairs.reshape(groups, -1, pairs.shape[1]).swapaxes(1, 2)
            pairs = blocks.reshape(-1, blocks.shape[2])
        return pairs

    @staticmethod
    def _live_inputs(layer: Layer, fixed: Mask, folding: bool) -> Mask:
        """Inputs that matter to an output with weights for them."""
        if layer.input.axis is None:
            return np.ones(layer.inputs, bool)
        return np.asarray(~(fixed if folding else fixed & (layer.input.numbers == 0)))

    def _fixed(self, layer: Layer, outputs: int) -> Mask | None:
        """Outputs that read no live input; None if there are none."""
        live = self._live_inputs(layer, layer.input.fixed, layer.folds)
        if layer.pairs is None:
            return None if some(live) else np.ones(outputs, bool)
        reads = layer.pairs.reshape(layer.groups, outputs // layer.groups, -1) & live.reshape(layer.groups, 1, -1)
        return np.asarray(~np.logical_or.reduce(reads, axis=2).reshape(-1))

    def needs(self, node: Node) -> None:
        layer, out = node.layer, node.output
        layer.rows = layer.computed_rows() if layer.free else out.need.copy()
        layer.columns = self.reads(layer, layer.rows)
        if layer.mapped_columns is not None and some(layer.rows) and not some(layer.columns):
            # there is no convolution without inputs
            layer.mapped_columns = None
            layer.columns = self.reads(layer, layer.rows)
        layer.columns = with_fewest_alike(layer, layer.columns)
        if layer.groups > 1:
            even = regular(layer.rows, layer.columns, layer.groups)
            pays = layer.free and not layer.transposed and not layer.twins
            layer.ragged = pays and ragged_pays((layer.rows, layer.columns), even, layer.groups)
            if not layer.ragged:
                layer.rows, layer.columns = even
        layer.read_operand()

    def reads(self, layer: Layer, rows: Mask) -> Mask:
        """Inputs that matter to these rows."""
        live = self._live_inputs(layer, layer.fixed_inputs, layer.folds and layer.free)
        live = without(live, layer.mapped_columns)
        if layer.pairs is None:
            return live if some(rows) else np.zeros_like(live)
        pairs = layer.pairs.reshape(layer.groups, -1, layer.pairs.shape[1])
        read = np.logical_or.reduce(pairs & rows.reshape(layer.groups, -1, 1), axis=1)
        return np.asarray(read.reshape(-1) & live)

    def unify_widths(self, node: Node) -> bool:
        layer: Layer = node.layer
        out, changed = node.output, layer.keep_operand()
        if layer.free:
            # rows that only fill up a group are computed as well
            return layer.keep_computed() or changed
        if layer.groups > 1:
            layer.rows, layer.columns = np.ones_like(layer.rows), np.ones_like(layer.columns)
            return pin([layer.input, out]) or changed
        changed = layer.agree() or changed
        layer.rows, layer.columns = out.keep, layer.present
        return changed

    def tie(self, node: Node, tracks: Tracks) -> None:
        # the order of inputs has nothing to do with that of outputs
        layer: Layer = node.layer
        if layer.twins or layer.groups > 1 or layer.given is not None:
            super().tie(node, tracks)
        tracks.pin(layer.vectors)

    def refusal(self, node: Node) -> str:
        if node.layer.computed and not node.layer.free:
            return f"{node.op}: {self.reason}"
        if node.layer.free or node.layer.groups == 1:
            return ""
        return f"{node.op}: a grouped convolution whose weights are used more than once or outside of a module"

    def macs(self, node: Node, graph: Graph) -> tuple[int, int]:
        layer: Layer = node.layer
        weight, over = layer.held("weight", graph), layer.operand if self.transposed else node.output
        positions = prod(over.shape) // over.shape[len(over.shape) - 1 - self.spatial]
        pairs = sum(height * width for height, width in layer.block_sizes)
        return positions * weight.numel(), positions * pairs * prod(weight.shape[2:])

    def true_attributes(self, module: Any) -> dict[str, int]:
        outputs, inputs = module.weight.shape
        return {"in_features": inputs, "out_features": outputs}


class Convolution(Linear):
    """A linear layer at every pixel."""

    modules = (_ConvNd,)

    def __init__(self, spatial: int) -> None:
        self.spatial = spatial

    def window(self, module: Any) -> list[list[int]] | None:
        if module.padding == "same":
            return None
        padding = (0,) * len(module.kernel_size) if module.padding == "valid" else module.padding
        extra = [module.output_padding] if self.transposed else []
        settings = zip(module.kernel_size, module.stride, padding, module.dilation, *extra, strict=True)
        return [list(map(int, setting)) for setting in settings]

    def true_attributes(self, module: Any) -> dict[str, int]:
        first, second = module.weight.shape[:2]
        names = ("in_channels", "out_channels") if self.transposed else ("out_channels", "in_channels")
        return dict(zip(names, (first, second * module.groups), strict=True))


class TransposedConvolution(Convolution):
    """Its weight has inputs in dimension 0 and outputs in dimension 1."""

    modules = (_ConvTransposeNd,)
    transposed = True

    def infer(self, node: Node, graph: Graph) -> bool:
        if not super().infer(node, graph):
            return False
        layer = node.layer
        if layer.groups == 1 and layer.input.axis is not None and every(layer.input.fixed):
            self._carry(layer, graph)
        return True

    @staticmethod
    def _carry(layer: Layer, graph: Graph) -> None:
        """Constants become a pattern for each entry of the window, the same for all outputs, and one for the bias."""
        weight = layer.held("weight", graph).detach().double().cpu().flatten(2).numpy()
        shares = np.einsum("i,iok->ok", layer.input.numbers, weight)
        bias = layer.held("bias", graph).detach().double().cpu().numpy() if layer.has("bias") else np.zeros(len(shares))
        layer.output.carry(np.ones(len(shares), bool), np.concatenate([shares, bias[:, None]], 1))


class BatchNorm(LayerRule):
    """A channel with scale zero is its shift; a fixed channel stays fixed."""

    reason = "channels that do not lie along dimension 1"
    modules = (_NormBase,)
    roles = ("running_mean", "running_var", "weight", "bias")

    def infer(self, node: Node, graph: Graph) -> bool:
        layer = self.layer_of(node, 1)
        if layer is None:
            return False
        layer.eps = argument(node, 7, "eps", 1e-5)
        fixed = layer.input.fixed if layer.input.axis is not None and self.keeps_constants(node, layer) else None
        if layer.has("weight"):
            switched_off = as_array(layer.held("weight", graph)) == 0
            fixed = switched_off if fixed is None else switched_off | fixed
        node.layer = layer
        node.output.track(1, fixed, node.result)
        return True

    def keeps_constants(self, node: Node, layer: Layer) -> bool:
        """Whether a constant channel stays constant."""
        return not argument(node, 5, "training", False) and layer.has("running_mean")

    def needs(self, node: Node) -> None:
        layer, out = node.layer, node.output
        layer.rows = layer.columns = layer.computed_rows() if layer.free else out.need.copy()
        layer.read_operand()

    def unify_widths(self, node: Node) -> bool:
        layer: Layer = node.layer
        source, out, changed = layer.input, node.output, layer.keep_operand()
        if layer.free:
            return (bool(layer.twins) and layer.keep_computed()) or changed
        changed = unite([out, *layer.vectors]) or changed
        changed = (pin([out]) if layer.given is not None or source.axis is None else unite([source, out])) or changed
        changed = layer.agree() or changed
        layer.rows = layer.columns = out.keep
        return changed

    def tie(self, node: Node, tracks: Tracks) -> None:
        layer: Layer = node.layer
        if layer.twins or layer.given is not None or layer.input.axis is None:
            super().tie(node, tracks)
            return
        for value in (layer.input, *layer.vectors):
            tracks.tie(node.output, value)

    def true_attributes(self, module: Any) -> dict[str, int]:
        like = module.running_mean if module.running_mean is not None else module.weight
        return {} if like is None else {"num_features": like.shape[0]}


OPERATORS: dict[str, Rule] = {
    "linear": Linear(),
    **{f"conv{d}d": Convolution(d) for d in (1, 2, 3)},
    **{f"conv_transpose{d}d": TransposedConvolution(d) for d in (1, 2, 3)},
    "batch_norm": BatchNorm(),
}
