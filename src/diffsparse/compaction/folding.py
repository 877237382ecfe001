"""Batch norms folded into the layers in front of them."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from diffsparse.compaction import actions
from diffsparse.compaction.actions import Action, Slice
from diffsparse.compaction.analyse import Analysis
from diffsparse.compaction.apply import PlanTensors
from diffsparse.compaction.graph import Graph, read_counts
from diffsparse.compaction.masks import how_many, some
from diffsparse.compaction.rules.layer import Layer
from diffsparse.module_tree import lies_in


def fold_batch_norms(analysis: Analysis, layers: dict[str, Action], contents: PlanTensors) -> None:
    """Fold batch norms into the layers in front of them, where these stay in the plan `layers`."""
    gone = {name for name, action in layers.items() if action.drops_module}
    layer_of = {id(layer.output): layer for _, layer in analysis.layers}
    reads = read_counts(analysis.nodes, analysis.graph.results)
    for _, norm in analysis.layers:
        front = layer_of.get(id(norm.input))
        if front is None or front.call is None or norm.call is None or not _folds_into(front, norm):
            continue
        before, after = front.call.name, norm.call.name
        if reads[id(norm.input)] != 1 or lies_in(before, gone) or lies_in(after, gone):
            continue
        bare = Slice(outputs=(len(front.rows), how_many(front.rows)))
        layers[before] = replace(layers.get(before, bare), adds_bias=not front.has("bias"))  # type: ignore[call-arg]
        layers[after] = actions.Fold(**vars(layers.get(after, bare)))
        contents.affine[before] = _affine(analysis.graph, norm)
        contents.scale.pop(after, None)


def _folds_into(front: Layer, norm: Layer) -> bool:
    """Whether all that the layer computes goes into the batch norm, channel by channel."""
    return (
        front.mixes
        and not front.twins
        and front.mapped_columns is None
        and not norm.twins
        and not front.transposed
        and not norm.mixes
        and some(front.rows)
        and "running_mean" in norm.tensors
        and np.array_equal(front.rows, norm.input.keep)
        and np.array_equal(norm.columns, norm.input.keep)
    )


def _affine(graph: Graph, norm: Layer) -> tuple[Tensor, Tensor]:
    """Scale and shift of a batch norm in eval mode, for the channels that stay."""
    tensors = {role: graph.tensors[name].detach().double().cpu() for role, name in norm.tensors.items()}
    scale = (tensors["running_var"] + norm.eps).rsqrt()
    scale = scale * tensors["weight"] if "weight" in tensors else scale
    shift = -tensors["running_mean"] * scale
    shift = shift + tensors["bias"] if "bias" in tensors else shift
    if norm.scale is not None:
        scale, shift = (tensor * torch.from_numpy(norm.scale) for tensor in (scale, shift))
    rows = torch.from_numpy(norm.rows)
    return scale[rows], shift[rows]
