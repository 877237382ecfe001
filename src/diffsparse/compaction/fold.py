"""Batch norms folded into the convolution or linear layer in front of them."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from diffsparse.compaction.actions import Fold, Slice
from diffsparse.compaction.analyse import Analysis
from diffsparse.compaction.graph import Node, Value, read_counts
from diffsparse.compaction.plan import Plan
from diffsparse.compaction.rules.layer import Layer
from diffsparse.module_tree import lies_in


def fold_batch_norms(analysis: Analysis, plan: Plan) -> tuple[Plan, dict[str, tuple[Tensor, Tensor]]]:
    """A plan in which batch norms that can be folded are; and the scale and shift each layer takes over."""
    layers = dict(plan.layers)
    gone = {name for name, action in plan.layers.items() if action.drops_module}
    affine: dict[str, tuple[Tensor, Tensor]] = {}
    for front, norm in _pairs(analysis):
        assert front.call is not None
        assert norm.call is not None
        before, after = front.call.name, norm.call.name
        if lies_in(before, gone) or lies_in(after, gone):
            continue
        bare = Slice(outputs=(len(front.rows), int(front.rows.sum())))
        layers[before] = replace(layers.get(before, bare), adds_bias="bias" not in front.tensors)  # type: ignore[call-arg]
        layers[after] = Fold(**vars(layers.get(after, bare)))
        affine[before] = _affine(analysis, norm)
    return replace(plan, layers=layers), affine


def _pairs(analysis: Analysis) -> list[tuple[Layer, Layer]]:
    made_by: dict[int, Node] = {id(v): node for node in analysis.nodes for v in node.outputs}
    reads = read_counts(analysis.nodes, analysis.graph.results)
    found = []
    for _, norm in analysis.layers:
        node = made_by.get(id(norm.input))
        if not norm.mixes and norm.free and node is not None and node.layer is not None:
            front = node.layer
            if _fits(front, norm) and reads[id(norm.input)] == 1:
                found.append((front, norm))
    return found


def _fits(front: Layer, norm: Layer) -> bool:
    """Whether all that the layer computes goes into the batch norm, channel by channel."""
    between: Value = norm.input
    return (
        front.free
        and not front.transposed
        and front.mixes
        and bool(front.rows.any())
        and "running_mean" in norm.tensors
        and np.array_equal(front.rows, between.keep)
        and np.array_equal(norm.columns, between.keep)
    )


def _affine(analysis: Analysis, norm: Layer) -> tuple[Tensor, Tensor]:
    tensors = {role: analysis.graph.tensors[name].detach().double().cpu() for role, name in norm.tensors.items()}
    scale = (tensors["running_var"] + norm.eps).rsqrt()
    scale = scale * tensors["weight"] if "weight" in tensors else scale
    shift = -tensors["running_mean"] * scale
    shift = shift + tensors["bias"] if "bias" in tensors else shift
    rows = torch.from_numpy(norm.rows)
    return scale[rows], shift[rows]
